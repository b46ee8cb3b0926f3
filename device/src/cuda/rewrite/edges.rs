//! Implied dependencies: those that follow from other dependencies.
//!
//! NCCL makes each of its kernels wait for the one before it on the same communicator. The kernel's stream mostly waits
//! for later work anyway, so this dependency is implied. But the driver treats a node that two others wait for as a
//! fork, and a fork costs the GPU a join.

#![allow(unsafe_code)]

use cudarc::driver::sys;

use super::nodes::{GraphParts, plain, whole};
use super::order::topological_positions;
use crate::Result;
use crate::cuda::driver::Driver;

/// Removes every implied dependency.
///
/// # Safety
/// As [`super::rewrite`].
///
/// # Errors
/// The driver's.
pub(super) unsafe fn reduce(graph: sys::CUgraph) -> Result<()> {
    // SAFETY: the caller's graph, and edges that the driver said are in it.
    unsafe {
        let GraphParts { nodes, edges, data } = whole(graph)?;
        // An edge that is not plain implies nothing.
        let strict: Vec<usize> = (0..edges.len()).filter(|&edge| plain(&data[edge])).collect();
        let between: Vec<(usize, usize)> = strict.iter().map(|&edge| edges[edge]).collect();
        let removed: Vec<usize> = implied(nodes.len(), &between).into_iter().map(|edge| strict[edge]).collect();
        if removed.is_empty() {
            return Ok(());
        }
        let from: Vec<sys::CUgraphNode> = removed.iter().map(|&edge| nodes[edges[edge].0]).collect();
        let to: Vec<sys::CUgraphNode> = removed.iter().map(|&edge| nodes[edges[edge].1]).collect();
        let data: Vec<sys::CUgraphEdgeData> = removed.iter().map(|&edge| data[edge]).collect();
        sys::cuGraphRemoveDependencies_v2(graph, from.as_ptr(), to.as_ptr(), data.as_ptr(), data.len())
            .result()
            .driver("cuGraphRemoveDependencies")
    }
}

/// The implied edges `(from, to)` of a graph without cycles: other edges make a path from `from` to `to`.
fn implied(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut before = vec![Vec::new(); nodes];
    edges.iter().for_each(|&(from, to)| before[to].push(from));
    let position = topological_positions(nodes, edges);
    // For a node with several predecessors: marks those that come before another of them.
    let mut reached_for = vec![usize::MAX; nodes];
    let mut is_implied = |from: usize, to: usize| {
        if reached_for[to] != to {
            reached_for[to] = to;
            let first = before[to].iter().map(|&node| position[node]).min().unwrap_or(0);
            let mut open: Vec<usize> = before[to].clone();
            while let Some(node) = open.pop() {
                for &earlier in &before[node] {
                    if position[earlier] >= first && reached_for[earlier] != to {
                        reached_for[earlier] = to;
                        open.push(earlier);
                    }
                }
            }
        }
        reached_for[from] == to
    };
    let mut by_end: Vec<usize> = (0..edges.len()).filter(|&edge| before[edges[edge].1].len() > 1).collect();
    by_end.sort_by_key(|&edge| edges[edge].1);
    by_end.retain(|&edge| is_implied(edges[edge].0, edges[edge].1));
    by_end.sort_unstable();
    by_end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cuda::rewrite::order::tests::{graphs, reaches};

    #[test]
    fn a_chain_loses_its_shortcuts_and_a_fork_that_joins_keeps_both_sides() {
        assert_eq!(implied(4, &[(0, 1), (1, 2), (2, 3), (0, 2), (0, 3), (1, 3)]), [3, 4, 5]);
        assert_eq!(implied(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]), Vec::<usize>::new());
        assert_eq!(implied(5, &[(4, 2), (2, 0), (0, 3), (4, 3), (1, 3)]), [3]);
        assert_eq!(implied(1, &[]), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn what_is_removed_follows_from_what_stays_and_nothing_that_stays_follows((nodes, edges) in graphs()) {
            let removed = implied(nodes, &edges);
            let kept: Vec<(usize, usize)> =
                (0..edges.len()).filter(|edge| !removed.contains(edge)).map(|edge| edges[edge]).collect();
            prop_assert_eq!(reaches(nodes, &kept), reaches(nodes, &edges));
            for at in 0..kept.len() {
                let others: Vec<(usize, usize)> = kept.iter().copied().filter(|&edge| edge != kept[at]).collect();
                prop_assert!(!reaches(nodes, &others)[kept[at].0][kept[at].1]);
            }
        }
    }
}
