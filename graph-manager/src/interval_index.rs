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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_intervals_that_overlap_a_span_are_found_and_no_others() {
        let all: Vec<(usize, usize)> = (0..40).flat_map(|first| (first..40).map(move |last| (first, last))).collect();
        let mut index = IntervalIndex::default();
        for (id, (first, last)) in all.iter().enumerate() {
            index.insert(id, *first, *last);
        }
        for (first, last) in [(0, 39), (0, 0), (7, 8), (15, 16), (31, 32), (39, 100), (50, 60)] {
            let mut found: Vec<usize> = index.overlapping(first, last).collect();
            found.sort();
            let overlaps = |id: &usize| all[*id].0 <= last && first <= all[*id].1;
            assert_eq!(found, (0..all.len()).filter(overlaps).collect::<Vec<_>>(), "{first} to {last}");
        }
    }
}
