//! A captured graph is made lighter for the GPU before it is instantiated; what it computes stays the same.

#![allow(unsafe_code)]

mod edges;
mod memory_sets;
mod nodes;
mod order;
mod records;

use cudarc::driver::sys;

use super::Kernels;
use crate::Result;

/// Has memory sets done by a kernel, and removes records of events before the last and dependencies that follow from others.
///
/// # Safety
/// The graph is the caller's, is not instantiated yet, and nothing uses it meanwhile.
///
/// # Errors
/// The driver's.
pub(super) unsafe fn rewrite(graph: sys::CUgraph, kernels: &Kernels) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        memory_sets::replace(graph, kernels)?;
        records::remove_repeated(graph)?;
        edges::reduce(graph)
    }
}
