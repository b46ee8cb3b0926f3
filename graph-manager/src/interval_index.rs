//! Finds which intervals of time overlap.

use std::collections::HashMap;

/// Intervals, stored so that those that overlap a span are found without a look at all others. Each lies in the smallest
/// aligned cell of time, 2^level long, that holds all of it.
#[derive(Default)]
pub(crate) struct IntervalIndex {
    /// By level, and number within the level.
    cells: HashMap<(u32, usize), Vec<Entry>>,
    levels: u32,
}

struct Entry {
    id: usize,
    first: usize,
    last: usize,
}

impl IntervalIndex {
    /// Adds the interval from `first` to `last`, both included, under the number `id`.
    pub(crate) fn insert(&mut self, id: usize, first: usize, last: usize) {
        let level = usize::BITS - (first ^ last).leading_zeros();
        self.levels = self.levels.max(level + 1);
        self.cells.entry((level, cell(first, level))).or_default().push(Entry { id, first, last });
    }

    /// The numbers of the intervals that overlap `first` to `last`, both included, in no order.
    pub(crate) fn overlapping(&self, first: usize, last: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.levels)
            .flat_map(move |level| (cell(first, level)..=cell(last, level)).map(move |cell| (level, cell)))
            .filter_map(|key| self.cells.get(&key))
            .flatten()
            .filter(move |entry| entry.first <= last && first <= entry.last)
            .map(|entry| entry.id)
    }
}

fn cell(time: usize, level: u32) -> usize {
    time.checked_shr(level).unwrap_or(0)
}
