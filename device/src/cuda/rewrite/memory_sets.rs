//! Memory sets inside graphs, replaced by a kernel of ours.
//!
//! Libraries record memory sets: cuBLASLt for products that are split along their inner dimension, cuDNN for attention.
//! On an H200 such a node starts some 10 us after the work before it, and delays the work after it by 3 us more. A
//! kernel takes 2 us in total.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::from_ref;

use cudarc::driver::sys;

use super::nodes::{connect, is_of, neighbours, nodes};
use crate::Result;
use crate::cuda::Kernels;
use crate::cuda::cupti::name_nodes_like;
use crate::cuda::driver::Driver;
use crate::cuda::graph::add_kernel;

/// Threads of a block, of 16 bytes each.
const THREADS: u32 = 256;

/// The work of one launch of the kernel `set_bytes`.
#[derive(Debug, PartialEq)]
struct MemorySet {
    address: u64,
    /// The bytes to repeat, the lowest first.
    word: u32,
    bytes: u64,
}

impl MemorySet {
    /// The work of a node. `None` if the kernel cannot do it: the node sets rows with gaps between them, or begins at
    /// an address that is no multiple of 16.
    fn of(node: &sys::CUDA_MEMSET_NODE_PARAMS) -> Option<MemorySet> {
        let row = node.width * node.elementSize as usize;
        let word = match node.elementSize {
            1 => (node.value & 0xff) * 0x0101_0101,
            2 => (node.value & 0xffff) * 0x0001_0001,
            _ => node.value,
        };
        let whole = node.height <= 1 || node.pitch == row;
        let bytes = (row * node.height.max(1)) as u64;
        (whole && bytes > 0 && node.dst.is_multiple_of(16)).then_some(MemorySet { address: node.dst, word, bytes })
    }
}

/// Replaces every memory set of a graph that is not instantiated yet by a kernel.
///
/// # Safety
/// The graph is the caller's, and nothing uses it meanwhile.
///
/// # Errors
/// The driver's.
pub(super) unsafe fn replace(graph: sys::CUgraph, kernels: &Kernels) -> Result<()> {
    let set_bytes = kernels.function("set_bytes")?;
    // SAFETY: nodes are the graph's until they are destroyed; every buffer has the size the driver said; the arguments
    // of a kernel node are copied while it is added.
    unsafe {
        for node in nodes(graph)? {
            if !is_of(node, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET)? {
                continue;
            }
            let mut parameters = std::mem::zeroed();
            sys::cuGraphMemsetNodeGetParams(node, &mut parameters).result().driver("cuGraphMemsetNodeGetParams")?;
            let Some(set) = MemorySet::of(&parameters) else { continue };
            let (before, after) = (neighbours(node, true)?, neighbours(node, false)?);
            let mut arguments = [
                from_ref(&set.address) as *mut c_void,
                from_ref(&set.word) as *mut c_void,
                from_ref(&set.bytes) as *mut c_void,
            ];
            let blocks = set.bytes.div_ceil(16 * u64::from(THREADS)) as u32;
            let new = name_nodes_like(node, || add_kernel(graph, &[], set_bytes, (blocks, THREADS), &mut arguments))?;
            connect(graph, &before.0, &vec![new; before.0.len()], &before.1)?;
            connect(graph, &vec![new; after.0.len()], &after.0, &after.1)?;
            sys::cuGraphDestroyNode(node).result().driver("cuGraphDestroyNode")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(dst: u64, value: u32, elements: (u32, usize), rows: (usize, usize)) -> sys::CUDA_MEMSET_NODE_PARAMS {
        let ((element_size, width), (height, pitch)) = (elements, rows);
        sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize: element_size, width, height }
    }

    #[test]
    fn a_memory_set_of_any_element_is_a_repeated_word_and_one_with_gaps_or_at_an_odd_address_is_left_alone() {
        let set = |address, word, bytes| Some(MemorySet { address, word, bytes });
        assert_eq!(MemorySet::of(&node(32, 0, (1, 7), (1, 0))), set(32, 0, 7));
        assert_eq!(MemorySet::of(&node(32, 0x1ab, (1, 16), (1, 0))), set(32, 0xabab_abab, 16));
        assert_eq!(MemorySet::of(&node(32, 0xabcd, (2, 8), (1, 0))), set(32, 0xabcd_abcd, 16));
        assert_eq!(MemorySet::of(&node(32, 0x89ab_cdef, (4, 4), (3, 16))), set(32, 0x89ab_cdef, 48));
        assert_eq!(MemorySet::of(&node(32, 0, (4, 4), (3, 64))), None);
        assert_eq!(MemorySet::of(&node(8, 0, (1, 16), (1, 0))), None);
        assert_eq!(MemorySet::of(&node(32, 0, (1, 0), (1, 0))), None);
    }
}
