//! The times in which the buffers of a list are in use.

use std::collections::{HashMap, VecDeque};

use device::StreamId;

use super::data::Program;
use super::expand::{EntryOrJoin, Expanded};
use super::lifetime::{Lifetime, SEVERAL};
use super::order::{Order, base};

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Finds the order of the list, and the times in which the list's buffers are in use. `kept` are buffers that code
    /// outside of the step reads, each with the position up to which it does. `taken_at` has the positions at which
    /// buffers are taken.
    pub(super) fn order_and_lifetimes(&mut self, taken_at: Vec<u32>, kept: &[(u32, u32)]) {
        let order = Order::of(self);
        self.lifetimes = lifetimes(self, taken_at, &order);
        for &(buffer, until) in kept {
            let used = &mut self.lifetimes[buffer as usize];
            used.last = used.last.max(until);
            used.in_stream.1 = used.in_stream.1.max(until);
        }
        self.returned = kept.iter().filter(|(_, until)| *until == self.length).map(|(buffer, _)| *buffer).collect();
        self.waits = order.waits;
        self.waits.shrink_to_fit();
    }
}

/// First and last use of every buffer. Work on a side stream may start once everything that its stream waited for is
/// done. It may go on until the compute stream waits for it, directly or through another stream. Without such a wait it
/// may last to the end of the step. An unused buffer is in use only at the position of its taking.
fn lifetimes<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(
    program: &Program<R>,
    taken_at: Vec<u32>,
    order: &Order,
) -> Vec<Lifetime> {
    let compute = program.queues[0];
    let numbers: HashMap<StreamId, usize> = program.queues.iter().copied().zip(0..).collect();
    let mut uses = Uses {
        order,
        lifetimes: taken_at.into_iter().map(|at| Lifetime::at(at, compute)).collect(),
        is_used: vec![false; program.buffers.len()],
        since: vec![0; program.queues.len()],
        compute_at: 0,
        open: vec![VecDeque::new(); program.queues.len()],
    };
    let mut waits = order.waits.iter().peekable();
    program.walk(|position, step| match step {
        EntryOrJoin::Join(join) if join.by == compute => {
            uses.compute_at = position + 1;
            let on = numbers.get(&join.of).and_then(|of| order.last_before(*of, join.until));
            on.into_iter().for_each(|on| uses.arrive(position, on));
        }
        EntryOrJoin::Join(join) => {
            if let (Some(by), true) = (numbers.get(&join.by), join.of == compute) {
                uses.since[*by] = uses.since[*by].max(join.until);
            }
        }
        EntryOrJoin::Entry(expanded) => {
            let Expanded { visit, entry, .. } = &expanded;
            let queue = numbers[&entry.queue];
            while let Some(wait) = waits.next_if(|wait| wait.position == position) {
                if entry.queue == compute {
                    uses.arrive(position, wait.on);
                }
            }
            let of_region = program.visits.get(*visit as usize).map_or(compute, |visit| visit.stream);
            let base = base(entry.queue, of_region, compute).filter(|_| entry.placed);
            let first = uses.submit(position, queue, base.and_then(|base| numbers.get(&base).copied()));
            for (index, _) in expanded.uses().filter(|(index, _)| Program::<R>::is_taken(*index)) {
                uses.touch(index, Lifetime { first, ..Lifetime::at(position, entry.queue) }, queue);
            }
        }
    });
    for (_, buffer) in uses.open.into_iter().flatten() {
        uses.lifetimes[buffer as usize].last = program.length;
    }
    uses.lifetimes
}

/// The uses of buffers up to the entry that the walk has reached. Queue 0 is the compute stream.
struct Uses<'o> {
    order: &'o Order,
    lifetimes: Vec<Lifetime>,
    is_used: Vec<bool>,
    /// By queue: a position. All entries of compute before it are done before the next entry here.
    since: Vec<u32>,
    /// The position after the last entry or join of compute.
    compute_at: u32,
    /// By queue: uses that compute has not waited for yet, with their positions.
    open: Vec<VecDeque<(u32, u32)>>,
}

impl Uses<'_> {
    /// Compute waits at `position` for the entry `on`, and so for everything that this entry waited for.
    fn arrive(&mut self, position: u32, on: u32) {
        let Uses { order, lifetimes, open, .. } = self;
        order.done_with(on, |queue, until| {
            let count = open[queue].partition_point(|(submitted, _)| *submitted < until);
            for (_, buffer) in open[queue].drain(..count) {
                let used = &mut lifetimes[buffer as usize];
                used.last = used.last.max(position);
            }
        });
    }

    /// Adds an entry that comes after all earlier work on `base`. Returns the earliest position at which it may run.
    fn submit(&mut self, position: u32, queue: usize, base: Option<usize>) -> u32 {
        if queue == 0 {
            self.compute_at = position + 1;
            return position;
        }
        let place = match base {
            Some(0) => self.compute_at,
            Some(base) => self.since[base],
            None => 0,
        };
        self.since[queue] = self.since[queue].max(place);
        self.since[queue]
    }

    /// Adds a use of a buffer by an entry, with the time `now`.
    fn touch(&mut self, index: u32, now: Lifetime, queue: usize) {
        let used = &mut self.lifetimes[index as usize];
        if !std::mem::replace(&mut self.is_used[index as usize], true) {
            *used = now;
        }
        (used.first, used.last) = (used.first.min(now.first), used.last.max(now.last));
        used.in_stream.1 = now.last;
        if used.stream != now.stream {
            used.stream = SEVERAL;
        }
        if queue != 0 {
            self.open[queue].push_back((now.last, index));
        }
    }
}
