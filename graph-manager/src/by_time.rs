//! Finds what lives at the same time.

use std::collections::HashMap;

/// Things with lifetimes, kept so that those of one span are found without a look at all others: each lies in the smallest
/// aligned cell of time, 2^level long, that holds its whole life.
#[derive(Default)]
pub(crate) struct ByTime {
    /// By level and number in it.
    cells: HashMap<(u32, usize), Vec<Life>>,
    levels: u32,
}

struct Life {
    thing: usize,
    first: usize,
    last: usize,
}

impl ByTime {
    /// Adds a thing, by its number, that lives from `first` to `last`, both included.
    pub(crate) fn insert(&mut self, thing: usize, first: usize, last: usize) {
        let level = usize::BITS - (first ^ last).leading_zeros();
        self.levels = self.levels.max(level + 1);
        self.cells.entry((level, cell(first, level))).or_default().push(Life { thing, first, last });
    }

    /// The things that live at some time from `first` to `last`, both included, in no order.
    pub(crate) fn between(&self, first: usize, last: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.levels)
            .flat_map(move |level| (cell(first, level)..=cell(last, level)).map(move |cell| (level, cell)))
            .filter_map(|key| self.cells.get(&key))
            .flatten()
            .filter(move |life| life.first <= last && first <= life.last)
            .map(|life| life.thing)
    }
}

fn cell(time: usize, level: u32) -> usize {
    time.checked_shr(level).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_live_in_a_span_are_found_and_nothing_else() {
        let lives: Vec<(usize, usize)> = (0..40).flat_map(|first| (first..40).map(move |last| (first, last))).collect();
        let mut index = ByTime::default();
        for (thing, (first, last)) in lives.iter().enumerate() {
            index.insert(thing, *first, *last);
        }
        for (first, last) in [(0, 39), (0, 0), (7, 8), (15, 16), (31, 32), (39, 100), (50, 60)] {
            let mut found: Vec<usize> = index.between(first, last).collect();
            found.sort();
            let live = |thing: &usize| lives[*thing].0 <= last && first <= lives[*thing].1;
            assert_eq!(found, (0..lives.len()).filter(live).collect::<Vec<_>>(), "{first} to {last}");
        }
    }
}
