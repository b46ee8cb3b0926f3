//! Makes a captured graph cheaper for the GPU before it is instantiated. Its results stay the same.

#![allow(unsafe_code)]

mod early_starts;
mod edges;
mod memory_sets;
mod nodes;
mod order;
mod records;

use cudarc::driver::sys;

pub(in crate::cuda) use self::nodes::{is_of, neighbours};
use super::Kernels;
use crate::Result;

/// Replaces memory sets by kernels, removes repeated event records and implied dependencies, and lets kernels of ours
/// start early.
///
/// # Safety
/// The graph is the caller's, is not instantiated yet, and nothing uses it meanwhile.
///
/// # Errors
/// The driver's.
pub(super) unsafe fn rewrite(graph: sys::CUgraph, kernels: &Kernels) -> Result<()> {
    // SAFETY: the caller promises it.
    unsafe {
        memory_sets::replace(graph, kernels)?;
        records::remove_repeated(graph)?;
        edges::reduce(graph)?;
        early_starts::allow(graph, kernels)
    }
}
