//! Early starts of kernels: their blocks start before the kernel before them is done (programmatic dependent launch).
//!
//! Between two kernels that depend on each other a GPU is idle for about a microsecond: it starts the second kernel's
//! blocks when all blocks of the first are done. All kernels of ours begin with a wait for the work before them
//! (`begin_kernel` in `kernels/headers/common.cuh`). So their blocks may be started early, and the wait keeps the order.
//!
//! Kernels that wait for another GPU keep full dependencies. The blocks of a kernel that starts early after one could occupy the whole GPU
//! until the other GPU comes. That one may itself wait for work that then finds no room here.
//!
//! Kernels of libraries keep full dependencies: most of those that cuBLASLt chooses on an H200 do not wait, and nothing
//! tells those apart that do. Kernels of custom operations keep full dependencies too.

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::nodes::{GraphParts, connect, is_of, plain, whole};
use crate::Result;
use crate::cuda::Kernels;
use crate::cuda::driver::Driver;

/// The kind of a node, as far as this file has to know it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A kernel of ours. It waits for the work before it.
    Waits,
    /// Another kernel.
    Kernel,
    /// No kernel, or one that a kernel after it must see as done.
    Other,
}

/// Lets every kernel of ours start early that depends on one kernel alone.
///
/// # Safety
/// As [`super::rewrite`].
///
/// # Errors
/// The driver's.
pub(super) unsafe fn allow(graph: sys::CUgraph, kernels: &Kernels) -> Result<()> {
    // Older GPUs have no programmatic dependent launch.
    if kernels.gpu().capability.0 < 9 {
        return Ok(());
    }
    // SAFETY: the caller's graph, its nodes, and edges that the driver said are in it. Each is removed and added again.
    unsafe {
        let GraphParts { nodes, edges, data } = whole(graph)?;
        let kinds: Vec<Kind> = nodes.iter().map(|&node| kind_of(node, kernels)).collect::<Result<_>>()?;
        let mut early = early(&kinds, &edges);
        early.retain(|&edge| plain(&data[edge]));
        if early.is_empty() {
            return Ok(());
        }
        let from: Vec<sys::CUgraphNode> = early.iter().map(|&edge| nodes[edges[edge].0]).collect();
        let to: Vec<sys::CUgraphNode> = early.iter().map(|&edge| nodes[edges[edge].1]).collect();
        let before: Vec<sys::CUgraphEdgeData> = early.iter().map(|&edge| data[edge]).collect();
        sys::cuGraphRemoveDependencies_v2(graph, from.as_ptr(), to.as_ptr(), before.as_ptr(), before.len())
            .result()
            .driver("cuGraphRemoveDependencies")?;
        let programmatic = sys::CUgraphEdgeData {
            from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
            type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
            ..std::mem::zeroed()
        };
        connect(graph, &from, &to, &vec![programmatic; early.len()])
    }
}

/// The kind of a node.
///
/// # Safety
/// The node exists.
unsafe fn kind_of(node: sys::CUgraphNode, kernels: &Kernels) -> Result<Kind> {
    // SAFETY: the caller's node. Functions for kernels get only kernels. Zeros are valid values of both structs.
    unsafe {
        if !is_of(node, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL)? {
            return Ok(Kind::Other);
        }
        let mut kernel: sys::CUDA_KERNEL_NODE_PARAMS = std::mem::zeroed();
        sys::cuGraphKernelNodeGetParams_v2(node, &mut kernel).result().driver("cuGraphKernelNodeGetParams")?;
        if kernels.waits_for_peers(kernel.func) {
            return Ok(Kind::Other);
        }
        if kernels.is_ours(kernel.func) {
            return Ok(Kind::Waits);
        }
        // NCCL's kernels write memory of other GPUs, in a domain of their own. Work after them sees all of it only once
        // they are done.
        let mut value: sys::CUkernelNodeAttrValue = std::mem::zeroed();
        let domain = sys::CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
        sys::cuGraphKernelNodeGetAttribute(node, domain, &mut value)
            .result()
            .driver("cuGraphKernelNodeGetAttribute")?;
        let shared = value.memSyncDomain == sys::CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
        Ok(if shared { Kind::Kernel } else { Kind::Other })
    }
}

/// The edges `(from, to)` to nodes that may start early: kernels that wait, and depend on one kernel and nothing else.
fn early(kinds: &[Kind], edges: &[(usize, usize)]) -> Vec<usize> {
    let mut before = vec![0; kinds.len()];
    edges.iter().for_each(|&(_, to)| before[to] += 1);
    let may = |&edge: &usize| {
        let (from, to) = edges[edge];
        kinds[from] != Kind::Other && kinds[to] == Kind::Waits && before[to] == 1
    };
    (0..edges.len()).filter(may).collect()
}

#[cfg(test)]
mod tests {
    use super::Kind::{Kernel, Other, Waits};
    use super::*;

    #[test]
    fn kernels_that_wait_start_early_after_one_kernel_and_nothing_else_does() {
        assert_eq!(early(&[Kernel, Waits, Waits, Kernel], &[(0, 1), (1, 2), (2, 3)]), [0, 1]);
        // After a copy, and after two kernels.
        assert_eq!(early(&[Other, Waits, Kernel, Waits], &[(0, 1), (1, 3), (2, 3)]), Vec::<usize>::new());
        // Two kernels after one.
        assert_eq!(early(&[Kernel, Waits, Waits], &[(0, 1), (0, 2)]), [0, 1]);
    }
}
