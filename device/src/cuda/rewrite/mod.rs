//! A captured graph is made lighter for the GPU before it is instantiated; what it computes stays the same.

#![allow(unsafe_code)]

mod edges;
mod memory_sets;

use std::ptr::null_mut;

use cudarc::driver::sys;

use super::Kernels;
use super::error::Driver;
use crate::Result;

/// Has memory sets done by a kernel, and removes dependencies that follow from others.
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
        edges::reduce(graph)
    }
}

/// All nodes of a graph.
unsafe fn nodes(graph: sys::CUgraph) -> Result<Vec<sys::CUgraphNode>> {
    let mut count = 0;
    // SAFETY: the caller's graph; the buffer has the size asked for.
    unsafe {
        sys::cuGraphGetNodes(graph, null_mut(), &mut count).result().driver("cuGraphGetNodes")?;
        let mut nodes = vec![null_mut(); count];
        // The driver refuses a buffer for no nodes.
        if count == 0 {
            return Ok(nodes);
        }
        sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).result().driver("cuGraphGetNodes")?;
        Ok(nodes)
    }
}
