//! Events that are recorded more than once within a graph.
//!
//! NCCL records an event after each of its kernels, so that work after the launch waits for all transfers of the same
//! communicator. It also makes its next kernel wait for that node. Only the last record matters, while each one is a
//! branch of its own. The GPU takes 14 us to join it again. A graph with NCCL's kernels also waits for the same
//! event once, before the first of them. So a record stays if a node after it waits for its event.

#![allow(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::nodes::{GraphParts, connect, is_of, plain, whole};
use super::order::topological_positions;
use crate::Result;
use crate::cuda::driver::Driver;

/// The use of an event by a node. Events are numbered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EventUse {
    Record(usize),
    Wait(usize),
    Other,
}

/// Removes every record of an event that a later node records again.
///
/// # Safety
/// As [`super::rewrite`].
///
/// # Errors
/// The driver's.
pub(super) unsafe fn remove_repeated(graph: sys::CUgraph) -> Result<()> {
    // SAFETY: the caller's graph.
    let GraphParts { nodes, edges, data } = unsafe { whole(graph) }?;
    let mut events = HashMap::new();
    let mut uses = Vec::with_capacity(nodes.len());
    for &node in &nodes {
        // SAFETY: the graph's node.
        uses.push(match unsafe { event_of(node) }? {
            None => EventUse::Other,
            Some((records, event)) => {
                let next = events.len();
                let number = *events.entry(event).or_insert(next);
                if records { EventUse::Record(number) } else { EventUse::Wait(number) }
            }
        });
    }
    // An edge that is not plain orders less than a full dependency. Its nodes stay, and it implies nothing.
    let partial: Vec<(usize, usize)> = (0..edges.len()).filter(|&at| !plain(&data[at])).map(|at| edges[at]).collect();
    let edges: Vec<(usize, usize)> = (0..edges.len()).filter(|&at| plain(&data[at])).map(|at| edges[at]).collect();
    let mut removed = recorded_again(&edges, &uses);
    removed.retain(|&node| !partial.iter().any(|&(from, to)| from == node || to == node));
    let new = bridges(&edges, &removed, nodes.len());
    if new.iter().any(|edge| partial.contains(edge)) {
        return Ok(());
    }
    let from: Vec<sys::CUgraphNode> = new.iter().map(|&(from, _)| nodes[from]).collect();
    let to: Vec<sys::CUgraphNode> = new.iter().map(|&(_, to)| nodes[to]).collect();
    // SAFETY: the graph's nodes, not connected so far; zeros are a plain edge. Nodes that waited for a destroyed node
    // now wait for its predecessors. Nothing refers to the destroyed node afterwards.
    unsafe {
        connect(graph, &from, &to, &vec![std::mem::zeroed(); new.len()])?;
        for &node in &removed {
            sys::cuGraphDestroyNode(nodes[node]).result().driver("cuGraphDestroyNode")?;
        }
    }
    Ok(())
}

/// The event that a node records (`true`) or waits for (`false`).
///
/// # Safety
/// The node exists.
unsafe fn event_of(node: sys::CUgraphNode) -> Result<Option<(bool, sys::CUevent)>> {
    let mut event = null_mut();
    // SAFETY: the caller's node, of the type that each call is for.
    unsafe {
        if is_of(node, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD)? {
            let got = sys::cuGraphEventRecordNodeGetEvent(node, &mut event).result();
            return got.driver("cuGraphEventRecordNodeGetEvent").map(|()| Some((true, event)));
        }
        if is_of(node, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT)? {
            let got = sys::cuGraphEventWaitNodeGetEvent(node, &mut event).result();
            return got.driver("cuGraphEventWaitNodeGetEvent").map(|()| Some((false, event)));
        }
    }
    Ok(None)
}

/// The nodes that record an event, if a later node records it again and no later node waits for it.
fn recorded_again(edges: &[(usize, usize)], uses: &[EventUse]) -> Vec<usize> {
    // One bit for each of the first 64 events. Records of further events stay.
    let bit = |event: usize| 1_u64.checked_shl(event as u32).unwrap_or(0);
    let position = topological_positions(uses.len(), edges);
    let mut backward = edges.to_vec();
    backward.sort_unstable_by_key(|&(from, _)| std::cmp::Reverse(position[from]));
    // Events recorded, and waited for, after each node.
    let (mut records, mut waits) = (vec![0_u64; uses.len()], vec![0_u64; uses.len()]);
    for (from, to) in backward {
        let (record, wait) = match uses[to] {
            EventUse::Record(event) => (bit(event), 0),
            EventUse::Wait(event) => (0, bit(event)),
            EventUse::Other => (0, 0),
        };
        records[from] |= records[to] | record;
        waits[from] |= waits[to] | wait;
    }
    let again = |node: usize| match uses[node] {
        EventUse::Record(event) => records[node] & !waits[node] & bit(event) != 0,
        _ => false,
    };
    (0..uses.len()).filter(|&node| again(node)).collect()
}

/// The edges to add so that the remaining nodes keep their order when some are removed.
fn bridges(edges: &[(usize, usize)], removed: &[usize], nodes: usize) -> Vec<(usize, usize)> {
    let mut is_removed = vec![false; nodes];
    removed.iter().for_each(|&node| is_removed[node] = true);
    let position = topological_positions(nodes, edges);
    let mut forward: Vec<(usize, usize)> =
        edges.iter().copied().filter(|&(from, to)| is_removed[from] || is_removed[to]).collect();
    forward.sort_unstable_by_key(|&(_, to)| position[to]);
    // For each removed node: the remaining nodes that it waits for, directly or through other removed nodes.
    let mut waited_for = vec![BTreeSet::new(); nodes];
    let mut new = BTreeSet::new();
    for (from, to) in forward {
        let first = if is_removed[from] { waited_for[from].clone() } else { BTreeSet::from([from]) };
        if is_removed[to] {
            waited_for[to].extend(first);
        } else {
            new.extend(first.into_iter().map(|first| (first, to)));
        }
    }
    edges.iter().for_each(|edge| {
        new.remove(edge);
    });
    new.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::EventUse::{Other, Record, Wait};
    use super::*;
    use crate::cuda::rewrite::order::tests::{graphs, reaches};

    const NONE: [usize; 0] = [];

    #[test]
    fn of_one_event_only_the_last_record_in_a_chain_stays_and_records_on_branches_that_never_meet_stay_both() {
        // 0 - record 1 - 2 - record 3, beside 0 - 2.
        let edges = [(0, 1), (1, 2), (2, 3), (0, 2)];
        assert_eq!(recorded_again(&edges, &[Other, Record(0), Other, Record(0)]), [1]);
        assert_eq!(recorded_again(&edges, &[Other, Record(0), Other, Record(1)]), NONE);
        assert_eq!(recorded_again(&[(0, 1), (0, 2)], &[Other, Record(0), Record(0)]), NONE);
        assert_eq!(bridges(&edges, &[1], 4), Vec::new());
        assert_eq!(bridges(&edges[..3], &[1], 4), [(0, 2)]);
    }

    #[test]
    fn a_record_that_a_wait_comes_after_stays_and_one_after_the_wait_does_not() {
        let chain: Vec<(usize, usize)> = (1..5).map(|node| (node - 1, node)).collect();
        assert_eq!(recorded_again(&chain, &[Wait(0), Record(0), Other, Record(0), Record(0)]), [1, 3]);
        assert_eq!(recorded_again(&chain, &[Record(0), Record(0), Wait(0), Record(0), Record(0)]), [3]);
        assert_eq!(recorded_again(&chain, &[Record(0), Record(0), Wait(1), Record(0), Record(0)]), [0, 1, 3]);
    }

    #[test]
    fn events_after_the_64th_stay() {
        let uses: Vec<EventUse> = (0..140).map(|node| Record(node % 70)).collect();
        let edges: Vec<(usize, usize)> = (1..140).map(|node| (node - 1, node)).collect();
        assert_eq!(recorded_again(&edges, &uses), (0..64).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn a_node_goes_exactly_if_it_reaches_another_record_of_its_event_and_no_wait(
            (nodes, edges) in graphs(),
            kinds in prop::collection::vec((0_usize..3, 0_usize..3), 12),
        ) {
            let reaches = reaches(nodes, &edges);
            let kind = |&(kind, event): &(usize, usize)| [Record(event), Wait(event), Other][kind];
            let uses: Vec<EventUse> = kinds[..nodes].iter().map(kind).collect();
            let after = |a: usize, what: EventUse| (0..nodes).any(|b| reaches[a][b] && uses[b] == what);
            let expected: Vec<usize> = (0..nodes)
                .filter(|&a| matches!(uses[a], Record(e) if after(a, Record(e)) && !after(a, Wait(e))))
                .collect();
            prop_assert_eq!(recorded_again(&edges, &uses), expected);
        }

        #[test]
        fn nodes_that_stay_keep_their_order_and_no_edge_is_added_twice(
            (nodes, edges) in graphs(),
            picks in prop::collection::vec(any::<bool>(), 12),
        ) {
            let removed: Vec<usize> = (0..nodes).filter(|&node| picks[node]).collect();
            let new = bridges(&edges, &removed, nodes);
            prop_assert!(new.iter().all(|edge| !edges.contains(edge)));
            let kept = edges.iter().chain(&new).copied().filter(|&(a, b)| !picks[a] && !picks[b]).collect::<Vec<_>>();
            let (before, after) = (reaches(nodes, &edges), reaches(nodes, &kept));
            for a in (0..nodes).filter(|&node| !picks[node]) {
                for b in (0..nodes).filter(|&node| !picks[node]) {
                    prop_assert_eq!(before[a][b], after[a][b]);
                }
            }
        }
    }
}
