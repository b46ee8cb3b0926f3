//! Dependencies that follow from others.
//!
//! NCCL has each transfer depend on the one before it on the same communicator, beside what the stream depends on, which
//! mostly comes after that anyway. The driver takes a node that two others wait for as a fork, and what is on two branches
//! of its own waits some 10 us at every join.

use std::collections::HashMap;
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::nodes;
use crate::Result;
use crate::cuda::error::Driver;

/// Removes every dependency that follows from others.
///
/// # Safety
/// As [`super::rewrite`].
///
/// # Errors
/// The driver's.
pub(super) unsafe fn reduce(graph: sys::CUgraph) -> Result<()> {
    // SAFETY: the caller's graph; buffers have the size the driver said.
    unsafe {
        let nodes = nodes(graph)?;
        let mut count = 0;
        sys::cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count)
            .result()
            .driver("cuGraphGetEdges")?;
        let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
        let mut data: Vec<sys::CUgraphEdgeData> = vec![std::mem::zeroed(); count];
        if count == 0 {
            return Ok(());
        }
        sys::cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count)
            .result()
            .driver("cuGraphGetEdges")?;
        let numbers: HashMap<sys::CUgraphNode, usize> =
            nodes.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        // An edge with data lets its end begin before its start is done: nothing follows from it.
        let whole: Vec<usize> = (0..count).filter(|&edge| data[edge] == std::mem::zeroed()).collect();
        let edges: Vec<(usize, usize)> = whole.iter().map(|&edge| (numbers[&from[edge]], numbers[&to[edge]])).collect();
        let removed: Vec<usize> = implied(nodes.len(), &edges).into_iter().map(|edge| whole[edge]).collect();
        if removed.is_empty() {
            return Ok(());
        }
        let pick = |all: &[sys::CUgraphNode]| removed.iter().map(|&edge| all[edge]).collect::<Vec<_>>();
        let (from, to) = (pick(&from), pick(&to));
        let data: Vec<sys::CUgraphEdgeData> = removed.iter().map(|&edge| data[edge]).collect();
        sys::cuGraphRemoveDependencies_v2(graph, from.as_ptr(), to.as_ptr(), data.as_ptr(), data.len())
            .result()
            .driver("cuGraphRemoveDependencies")
    }
}

/// The edges `(from, to)` between whose ends other edges make a path, in a graph without cycles.
fn implied(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut before = vec![Vec::new(); nodes];
    let mut after = vec![Vec::new(); nodes];
    for &(from, to) in edges {
        before[to].push(from);
        after[from].push(to);
    }
    // Places in an order in which every edge goes forward.
    let mut place = vec![0; nodes];
    let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..nodes).filter(|&node| missing[node] == 0).collect();
    let mut next = 0;
    while let Some(node) = ready.pop() {
        place[node] = next;
        next += 1;
        for &end in &after[node] {
            missing[end] -= 1;
            if missing[end] == 0 {
                ready.push(end);
            }
        }
    }
    // For each node with several before it: which of these are before another of them.
    let mut reached_for = vec![usize::MAX; nodes];
    let mut is_implied = |from: usize, to: usize| {
        if reached_for[to] != to {
            reached_for[to] = to;
            let first = before[to].iter().map(|&node| place[node]).min().unwrap_or(0);
            let mut open: Vec<usize> = before[to].clone();
            while let Some(node) = open.pop() {
                for &earlier in &before[node] {
                    if place[earlier] >= first && reached_for[earlier] != to {
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

    #[test]
    fn a_chain_loses_its_shortcuts_and_a_fork_that_joins_keeps_both_sides() {
        assert_eq!(implied(4, &[(0, 1), (1, 2), (2, 3), (0, 2), (0, 3), (1, 3)]), [3, 4, 5]);
        assert_eq!(implied(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]), Vec::<usize>::new());
        assert_eq!(implied(5, &[(4, 2), (2, 0), (0, 3), (4, 3), (1, 3)]), [3]);
        assert_eq!(implied(1, &[]), Vec::<usize>::new());
    }

    fn reaches(nodes: usize, edges: &[(usize, usize)]) -> Vec<Vec<bool>> {
        let mut reaches = vec![vec![false; nodes]; nodes];
        edges.iter().for_each(|&(from, to)| reaches[from][to] = true);
        for middle in 0..nodes {
            for from in 0..nodes {
                for to in 0..nodes {
                    reaches[from][to] |= reaches[from][middle] && reaches[middle][to];
                }
            }
        }
        reaches
    }

    proptest! {
        #[test]
        fn what_is_removed_follows_from_what_stays_and_nothing_that_stays_follows(
            nodes in 2_usize..12,
            picks in prop::collection::vec((0_usize..144, 0_usize..144), 0..40),
            names in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            // Any numbering: edges go up in a hidden order. Each pair once, as the driver has it.
            let names: Vec<usize> = names.into_iter().filter(|&name| name < nodes).collect();
            let mut edges: Vec<(usize, usize)> =
                picks.iter().map(|(a, b)| (a % nodes, b % nodes)).filter(|(a, b)| a < b).collect();
            edges.sort_unstable();
            edges.dedup();
            let edges: Vec<(usize, usize)> = edges.into_iter().map(|(a, b)| (names[a], names[b])).collect();
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
