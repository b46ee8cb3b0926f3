//! Valid orders of the nodes of a graph.

use std::rc::Rc;

use super::Node;
use crate::Op;

/// The next state of a linear congruential generator (Knuth's MMIX).
pub(super) fn next_random(state: u64) -> u64 {
    state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407)
}

/// A random order that respects the dependencies and, per communicator, the order of capture.
pub(super) fn random_order(nodes: &[Node], seed: u64) -> Vec<usize> {
    let mut waits_for: Vec<usize> = nodes.iter().map(|node| node.dependencies.len()).collect();
    let mut followers = vec![Vec::new(); nodes.len()];
    let mut last_collective: Vec<(*const (), usize)> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        for &dependency in &node.dependencies {
            followers[dependency].push(index);
        }
        if let Op::Collective(collective) = &node.op {
            let communicator = Rc::as_ptr(&collective.communicator).cast::<()>();
            match last_collective.iter_mut().find(|(known, _)| *known == communicator) {
                Some((_, last)) => {
                    followers[*last].push(index);
                    waits_for[index] += 1;
                    *last = index;
                }
                None => last_collective.push((communicator, index)),
            }
        }
    }
    let transfer = |index: usize| matches!(nodes[index].op, Op::Collective(_));
    let mark = |index: usize| matches!(nodes[index].op, Op::ProgressMark(_));
    // Marks the nodes that make followers wait for a transfer: transfers, and marks after them.
    let mut leads = vec![false; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        leads[index] = transfer(index) || (mark(index) && node.dependencies.iter().any(|&before| leads[before]));
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|&index| waits_for[index] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    // Mixed. Otherwise the draws of a launch would be those of the launch before, shifted by one.
    let mut state = (seed ^ (seed >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    while !ready.is_empty() {
        state = next_random(state);
        let draw = (state >> 33) as usize;
        let mut at = draw % ready.len();
        // A node that waits for a transfer blocks this one thread (on a GPU only its own stream). Other ranks may need
        // more from this rank before they can do their part. So transfers and marks go first.
        let free = |index: usize| transfer(index) || mark(index);
        let waits = nodes[ready[at]].dependencies.iter().any(|&before| leads[before]);
        if waits && !free(ready[at]) {
            let first: Vec<usize> = (0..ready.len()).filter(|&at| free(ready[at])).collect();
            at = first.get(draw % first.len().max(1)).copied().unwrap_or(at);
        }
        let index = ready.swap_remove(at);
        order.push(index);
        for &follower in &followers[index] {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    order
}
