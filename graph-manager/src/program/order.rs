//! The order of entries. It follows from four rules:
//!
//! - **Data**: if an entry writes bytes that another reads or writes, the later one waits for the earlier one.
//! - **Queue**: entries of a queue run in turn.
//! - **Place**: an entry on another queue than its region's waits for the region's entry before it in the list. It also
//!   waits for everything that the region's queue has waited for since.
//! - **End**: a join waits for the work of another queue.
//!
//! An entry waits for at most one entry of each other queue, and for none that is done anyway because of other waits.
//! Each queue has a vector clock to know this: how far every other queue is done before its next entry.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use device::StreamId;

use super::data::{NONE, Program, Wait};
use super::expand::{EntryOrJoin, Expanded};

/// The other queue that an entry on `queue` waits for by the rule of place, in a region that runs on `of_region`. An
/// entry on the second lane waits for the compute stream.
pub(super) fn base(queue: StreamId, of_region: StreamId, compute: StreamId) -> Option<StreamId> {
    let base = if queue == of_region { compute } else { of_region };
    (queue != base).then_some(base)
}

/// The waits of a list, and for each entry the work that is done before the entry.
pub(super) struct Order {
    pub(super) waits: Vec<Wait>,
    queues: Vec<Queue>,
    /// By position: the queue of the entry.
    queue_of: Vec<u16>,
}

/// A queue up to the entry that the walk has reached.
#[derive(Default)]
struct Queue {
    /// Positions of the queue's entries.
    entries: Vec<u32>,
    /// The vector clock. By queue: a position. The queue's entries before it are done before the next entry here.
    clock: Vec<u32>,
    /// Positions at which the clock changed, for `clocks`.
    changed: Vec<u32>,
    clocks: Vec<u32>,
    /// Entries that joins name, for the next entry.
    pending: Vec<u32>,
}

impl Queue {
    /// The last entry before a position.
    fn before(&self, position: u32) -> Option<u32> {
        let count = self.entries.partition_point(|entry| *entry < position);
        count.checked_sub(1).map(|at| self.entries[at])
    }

    /// The clock of the queue's entry at that position.
    fn clock_at(&self, position: u32) -> &[u32] {
        let count = self.changed.partition_point(|changed| *changed <= position);
        let width = self.clock.len();
        count.checked_sub(1).map_or(&[], |at| &self.clocks[at * width..(at + 1) * width])
    }
}

impl Order {
    /// Calls `each` with queues and the positions up to which the queues' entries are done once the entry at `position`
    /// is.
    pub(super) fn done_with(&self, position: u32, mut each: impl FnMut(usize, u32)) {
        let queue = self.queue_of[position as usize] as usize;
        self.queues[queue].clock_at(position).iter().enumerate().for_each(|(of, until)| each(of, *until));
        each(queue, position + 1);
    }

    /// The last entry of a queue before a position.
    pub(super) fn last_before(&self, queue: usize, position: u32) -> Option<u32> {
        self.queues[queue].before(position)
    }

    /// An order without entries yet, for `width` queues and up to `length` entries.
    pub(super) fn empty(width: usize, length: usize) -> Order {
        let queue = || Queue { clock: vec![0; width], ..Queue::default() };
        let queues = (0..width).map(|_| queue()).collect();
        Order { waits: Vec::new(), queues, queue_of: vec![u16::MAX; length] }
    }

    /// The queue of an entry.
    pub(super) fn queue_of(&self, position: u32) -> usize {
        self.queue_of[position as usize].into()
    }

    /// The order of a list.
    pub(super) fn of<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(program: &Program<R>) -> Order {
        let mut order = Order::empty(program.queues.len(), program.length as usize);
        let numbers: HashMap<StreamId, usize> = program.queues.iter().copied().zip(0..).collect();
        let last_use = shared(program);
        let (mut data, mut required) = (Data::default(), Vec::new());
        program.walk(|position, step| match step {
            EntryOrJoin::Join(join) => {
                let before = numbers.get(&join.of).and_then(|of| order.queues[*of].before(join.until));
                if let (Some(by), Some(before)) = (numbers.get(&join.by), before) {
                    order.queues[*by].pending.push(before);
                }
            }
            EntryOrJoin::Entry(expanded) => {
                let Expanded { visit, entry, .. } = &expanded;
                let queue = numbers[&entry.queue];
                required.append(&mut order.queues[queue].pending);
                let of_region = program.visits.get(*visit as usize).map_or(program.queues[0], |visit| visit.stream);
                let base = base(entry.queue, of_region, program.queues[0]).and_then(|base| numbers.get(&base));
                if let Some(base) = base.filter(|_| entry.placed).map(|base| &order.queues[*base]) {
                    required.extend(base.entries.last());
                    required.extend(&base.pending);
                }
                let taken = |index: u32| Program::<R>::is_taken(index).then(|| &program.buffers[index as usize]);
                let orders = |(index, _): &(u32, _)| taken(*index).is_none() || last_use[*index as usize] != NONE;
                for (index, each) in expanded.uses().filter(orders) {
                    let address = taken(index).map_or(0, |taken| taken.address);
                    let range = address + each.start..address + each.end;
                    data.touch(range, each.writes, position, queue, &order.queue_of, &mut required);
                }
                order.submit(position, queue, &mut required);
                let over = expanded.uses().filter_map(|(index, _)| taken(index).map(|taken| (index, taken)));
                for (_, taken) in over.filter(|(index, _)| last_use[*index as usize] == position) {
                    data.forget(taken.address..taken.address + taken.bytes as u64);
                }
            }
        });
        order.queues.iter_mut().for_each(|queue| queue.pending.clear());
        order
    }

    /// Adds an entry that comes after the `required` ones, and keeps the waits that do not follow from others.
    pub(super) fn submit(&mut self, position: u32, queue: usize, required: &mut Vec<u32>) {
        // Latest first: a wait for a later entry may include waits for earlier ones, never the other way round.
        required.sort_unstable_by_key(|on| std::cmp::Reverse(*on));
        let mut clock = std::mem::take(&mut self.queues[queue].clock);
        let first = self.waits.len();
        for on in required.drain(..) {
            let of = self.queue_of[on as usize] as usize;
            if of == queue || clock[of] > on {
                continue;
            }
            self.waits.push(Wait { position, on });
            self.done_with(on, |of, until| clock[of] = clock[of].max(until));
        }
        let own = &mut self.queues[queue];
        own.clock = clock;
        if self.waits.len() > first {
            own.changed.push(position);
            own.clocks.extend(&own.clock);
        }
        own.entries.push(position);
        self.queue_of[position as usize] = queue as u16;
    }
}

/// The last uses of ranges of bytes.
#[derive(Default)]
struct Data(BTreeMap<u64, Cell>);

#[derive(Clone, Default)]
struct Cell {
    end: u64,
    written: Option<u32>,
    /// The last read of each queue since that write.
    reads: Vec<(u16, u32)>,
}

impl Data {
    /// Makes `at` a border between cells.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.0.range_mut(..at).next_back()
            && cell.end > at
        {
            let right = cell.clone();
            cell.end = at;
            self.0.insert(at, right);
        }
    }

    /// Forgets the bytes of a range, which no later entry uses.
    fn forget(&mut self, range: Range<u64>) {
        while let Some(start) = self.0.range(range.clone()).next().map(|(start, _)| *start) {
            self.0.remove(&start);
        }
    }

    /// Notes that an entry reads or writes the bytes of a range: adds the entries that it comes after.
    fn touch(
        &mut self,
        range: Range<u64>,
        writes: bool,
        position: u32,
        queue: usize,
        queue_of: &[u16],
        required: &mut Vec<u32>,
    ) {
        if range.is_empty() {
            return;
        }
        let mut after = |cell: &Cell| {
            let reads = cell.reads.iter().filter(|_| writes).map(|(_, read)| *read);
            let others = cell.written.into_iter().chain(reads);
            required.extend(others.filter(|on| usize::from(queue_of[*on as usize]) != queue && *on != position));
        };
        let note = |cell: &mut Cell| {
            if writes {
                cell.written = Some(position);
                cell.reads.clear();
            } else {
                let queue = queue as u16;
                match cell.reads.iter_mut().find(|(of, _)| *of == queue) {
                    Some((_, read)) => *read = position,
                    None => cell.reads.push((queue, position)),
                }
            }
        };
        // Most ranges are used as a whole.
        if let Some(cell) = self.0.get_mut(&range.start)
            && cell.end == range.end
        {
            after(cell);
            note(cell);
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let (mut at, mut gaps) = (range.start, Vec::new());
        for (&start, cell) in self.0.range_mut(range.clone()) {
            if start > at {
                gaps.push((at, start));
            }
            after(cell);
            note(cell);
            at = cell.end;
        }
        if at < range.end {
            gaps.push((at, range.end));
        }
        for (start, end) in gaps {
            let mut cell = Cell { end, ..Cell::default() };
            note(&mut cell);
            self.0.insert(start, cell);
        }
    }
}

/// By buffer that a region takes: the position of its last use, if several queues use it and one of them writes; else
/// `NONE`. Uses of the other buffers are in order anyway, by their queue.
fn shared<R: Copy + Eq + std::hash::Hash + std::fmt::Display>(program: &Program<R>) -> Vec<u32> {
    const WRITTEN: u32 = 1 << 31;
    const BITS: usize = 30;
    let mut used = vec![(0u32, NONE); program.buffers.len()];
    program.walk(|position, step| {
        let EntryOrJoin::Entry(expanded) = step else { return };
        let queue = program.queues.iter().position(|queue| *queue == expanded.entry.queue).unwrap_or(0);
        for (index, each) in expanded.uses().filter(|(index, _)| Program::<R>::is_taken(*index)) {
            let (by, last) = &mut used[index as usize];
            // Queues beyond the bits count as several.
            let bits = if queue < BITS { 1 << queue } else { 1 << BITS | 1 };
            *by |= bits | if each.writes { WRITTEN } else { 0 };
            *last = position;
        }
    });
    let is_shared = |by: u32| by & WRITTEN != 0 && (by & !WRITTEN).count_ones() > 1;
    used.into_iter().map(|(by, last)| if is_shared(by) { last } else { NONE }).collect()
}
