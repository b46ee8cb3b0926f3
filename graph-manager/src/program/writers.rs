//! The entries of a list that write to given memory.

use std::ops::Range;

use super::body::{Body, Entry, Item};
use super::data::{OUTSIDE, Program};

/// The entries that write to some memory.
pub(crate) struct Writers {
    /// By body: whether each of its items is one.
    items: Vec<Vec<bool>>,
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// The entries that write to memory that no region takes, such as weights, in the ranges of addresses `ranges`. The
    /// ranges are in order and have nothing in common.
    pub(crate) fn writers(&self, ranges: &[Range<u64>]) -> Writers {
        let overlaps = |start: u64, end: u64| {
            let at = ranges.partition_point(|range| range.end <= start);
            ranges.get(at).is_some_and(|range| range.start < end)
        };
        let writes = |body: &Body, entry: &Entry| {
            body.uses[entry.uses.start as usize..entry.uses.end as usize].iter().any(|used| {
                let is_outside = || self.tables[(body.table + used.local) as usize] & OUTSIDE != 0;
                used.writes && overlaps(used.start, used.end) && is_outside()
            })
        };
        let of_body = |body: &Body| {
            let items = body.items.iter();
            items.map(|item| matches!(item, Item::Entry(entry) if writes(body, entry))).collect()
        };
        Writers { items: self.bodies.iter().map(of_body).collect() }
    }
}

impl Writers {
    /// Whether an entry that an action names is one.
    pub(crate) fn has<R>(&self, program: &Program<R>, visit: u32, item: u32) -> bool {
        let held = program.visits.get(visit as usize).map_or(program.outermost, |visit| visit.held);
        self.items[held.body as usize][item as usize]
    }

    /// Whether a visit, or one inside, has a writer.
    pub(crate) fn has_in<R>(&self, program: &Program<R>, visit: usize) -> bool {
        let mut visits = program.visits[visit..program.visits[visit].next()].iter();
        visits.any(|visit| self.items[visit.held.body as usize].contains(&true))
    }
}
