//! When each buffer of a list is in use.

use std::collections::{HashMap, VecDeque};

use device::StreamId;

use super::data::Program;
use super::expand::{Expanded, Step};
use super::lifetime::{Lifetime, SEVERAL};
use super::order::{Order, base};

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Finds the order of the list, and when each buffer is in use. Code outside of the step reads the buffers `kept` up to
    /// these positions. Buffers are taken at those of `taken_at`.
    pub(super) fn order_and_lifetimes(&mut self, taken_at: Vec<u32>, kept: &[(u32, u32)]) {
        let order = Order::of(self);
        self.lifetimes = lifetimes(self, taken_at, &order);
        for &(buffer, until) in kept {
            let used = &mut self.lifetimes[buffer as usize];
            used.last = used.last.max(until);
            used.in_stream.1 = used.in_stream.1.max(until);
        }
        self.waits = order.waits;
        self.waits.shrink_to_fit();
    }
}

/// First and last use of every buffer. Work on a side stream may start once all is done that its stream waited for. It
/// may go on until the compute stream waits for it, directly or through another stream. Without such a wait it may last to
/// the end of the step. A buffer that nothing uses is there where it was taken.
fn lifetimes<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    program: &Program<R>,
    taken_at: Vec<u32>,
    order: &Order,
) -> Vec<Lifetime> {
    let compute = program.queues[0];
    let numbers: HashMap<StreamId, usize> = program.queues.iter().copied().zip(0..).collect();
    let mut lifetimes: Vec<Lifetime> = taken_at.into_iter().map(|at| Lifetime::at(at, compute)).collect();
    let mut is_used = vec![false; program.buffers.len()];
    // By queue: all that compute was given before that position is done before what comes next here.
    let mut since = vec![0; program.queues.len()];
    // The position after the last entry or join of compute.
    let mut compute_at = 0;
    // Uses on side streams that compute has not waited for yet, in the order of each.
    let mut open: Vec<VecDeque<(u32, u32)>> = vec![VecDeque::new(); program.queues.len()];
    let mut waits = order.waits.iter().peekable();
    // Compute waits at `position` for the entry `on`, and for what that waited for.
    let arrive = |position, on, open: &mut Vec<VecDeque<(u32, u32)>>, lifetimes: &mut Vec<Lifetime>| {
        order.done_with(on, |queue, until| {
            while let Some((_, buffer)) = open[queue].pop_front_if(|(submitted, _)| *submitted < until) {
                let used = &mut lifetimes[buffer as usize];
                used.last = used.last.max(position);
            }
        });
    };
    program.walk(|position, step| match step {
        Step::Join(join) if join.by == compute => {
            compute_at = position + 1;
            let on = numbers.get(&join.of).and_then(|of| order.last_before(*of, join.until));
            on.into_iter().for_each(|on| arrive(position, on, &mut open, &mut lifetimes));
        }
        Step::Join(join) => {
            if let (Some(by), true) = (numbers.get(&join.by), join.of == compute) {
                since[*by] = since[*by].max(join.until);
            }
        }
        Step::Entry(expanded) => {
            let Expanded { visit, entry, .. } = &expanded;
            let queue = numbers[&entry.queue];
            while let Some(wait) = waits.next_if(|wait| wait.position == position) {
                if entry.queue == compute {
                    arrive(position, wait.on, &mut open, &mut lifetimes);
                }
            }
            if entry.queue == compute {
                compute_at = position + 1;
            } else if entry.placed {
                let of_region = program.visits.get(*visit as usize).map_or(compute, |visit| visit.stream);
                let place = match base(entry.queue, of_region, compute) {
                    Some(base) if base != compute => numbers.get(&base).map_or(0, |base| since[*base]),
                    _ => compute_at,
                };
                since[queue] = since[queue].max(place);
            }
            let first = if entry.queue == compute { position } else { since[queue] };
            for (index, _) in expanded.uses().filter(|(index, _)| Program::<R>::is_taken(*index)) {
                let used = &mut lifetimes[index as usize];
                if !std::mem::replace(&mut is_used[index as usize], true) {
                    *used = Lifetime { first, ..Lifetime::at(position, entry.queue) };
                }
                (used.first, used.last) = (used.first.min(first), used.last.max(position));
                used.in_stream.1 = position;
                if used.stream != entry.queue.0 {
                    used.stream = SEVERAL;
                }
                if entry.queue != compute {
                    open[queue].push_back((position, index));
                }
            }
        }
    });
    for (_, buffer) in open.into_iter().flatten() {
        lifetimes[buffer as usize].last = program.length;
    }
    lifetimes
}
