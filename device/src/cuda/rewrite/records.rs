//! Events recorded within a graph more than once.
//!
//! NCCL records an event after each of its kernels, so that what comes after the launch waits for all transfers of the same
//! communicator, and has the next of its kernels wait for that node. Only the last record tells something new, while each one
//! makes a branch of its own, which the GPU takes 12 us to join again.

use std::collections::HashMap;
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::nodes::{Whole, connect, is_of, neighbours, plain, whole};
use super::order::places;
use crate::Result;
use crate::cuda::error::Driver;

/// Takes out every record of an event that is recorded again by a node that comes after it.
///
/// # Safety
/// As [`super::rewrite`].
///
/// # Errors
/// The driver's.
pub(super) unsafe fn remove_repeated(graph: sys::CUgraph) -> Result<()> {
    // SAFETY: the caller's graph; a node is no longer used once it is destroyed.
    unsafe {
        let Whole { nodes, edges, .. } = whole(graph)?;
        let mut events = HashMap::new();
        let mut recorded = vec![None; nodes.len()];
        for (at, &node) in nodes.iter().enumerate() {
            if is_of(node, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD)? {
                let mut event = null_mut();
                sys::cuGraphEventRecordNodeGetEvent(node, &mut event)
                    .result()
                    .driver("cuGraphEventRecordNodeGetEvent")?;
                let next = events.len();
                recorded[at] = Some(*events.entry(event).or_insert(next));
            }
        }
        for at in recorded_again(&edges, &recorded) {
            take_out(graph, nodes[at])?;
        }
    }
    Ok(())
}

/// Has what waits for a node wait for what that waits for. A node at an edge that is not plain stays.
unsafe fn take_out(graph: sys::CUgraph, node: sys::CUgraphNode) -> Result<()> {
    // SAFETY: the caller's node of this graph.
    unsafe {
        let (before, before_data) = neighbours(node, true)?;
        let (after, after_data) = neighbours(node, false)?;
        if !before_data.iter().chain(&after_data).all(plain) {
            return Ok(());
        }
        for &later in &after {
            let (known, _) = neighbours(later, true)?;
            let new: Vec<sys::CUgraphNode> =
                before.iter().copied().filter(|earlier| !known.contains(earlier)).collect();
            connect(graph, &new, &vec![later; new.len()], &vec![std::mem::zeroed(); new.len()])?;
        }
        sys::cuGraphDestroyNode(node).result().driver("cuGraphDestroyNode")
    }
}

/// Which nodes record an event that a later node of the same graph records. `recorded`: of each node, the event's number.
fn recorded_again(edges: &[(usize, usize)], recorded: &[Option<usize>]) -> Vec<usize> {
    let bit = |node: usize| recorded[node].map_or(0_u64, |event| 1_u64.checked_shl(event as u32).unwrap_or(0));
    let place = places(recorded.len(), edges);
    let mut backward = edges.to_vec();
    backward.sort_unstable_by_key(|&(from, _)| std::cmp::Reverse(place[from]));
    // Events recorded after each node, one bit for each of the first 64.
    let mut later = vec![0_u64; recorded.len()];
    for (from, to) in backward {
        later[from] |= later[to] | bit(to);
    }
    (0..recorded.len()).filter(|&node| later[node] & bit(node) != 0).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cuda::rewrite::order::tests::{graphs, reaches};

    #[test]
    fn of_one_event_only_the_last_record_in_a_chain_stays_and_records_on_branches_that_never_meet_stay_both() {
        // 0 - record 1 - 2 - record 3, beside 0 - 2.
        let edges = [(0, 1), (1, 2), (2, 3), (0, 2)];
        assert_eq!(recorded_again(&edges, &[None, Some(0), None, Some(0)]), [1]);
        assert_eq!(recorded_again(&edges, &[None, Some(0), None, Some(1)]), Vec::<usize>::new());
        assert_eq!(recorded_again(&[(0, 1), (0, 2)], &[None, Some(0), Some(0)]), Vec::<usize>::new());
    }

    #[test]
    fn events_after_the_64th_stay() {
        let recorded: Vec<Option<usize>> = (0..140).map(|node| Some(node % 70)).collect();
        let edges: Vec<(usize, usize)> = (1..140).map(|node| (node - 1, node)).collect();
        assert_eq!(recorded_again(&edges, &recorded), (0..64).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn a_node_goes_exactly_if_it_reaches_another_record_of_its_event(
            (nodes, edges) in graphs(),
            events in prop::collection::vec(prop::option::of(0_usize..3), 12),
        ) {
            let reaches = reaches(nodes, &edges);
            let recorded = &events[..nodes];
            let expected: Vec<usize> = (0..nodes)
                .filter(|&a| recorded[a].is_some() && (0..nodes).any(|b| reaches[a][b] && recorded[a] == recorded[b]))
                .collect();
            prop_assert_eq!(recorded_again(&edges, recorded), expected);
        }
    }
}
