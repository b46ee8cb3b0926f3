//! An order of conversations with like lengths within each batch.

use std::sync::{Arc, Mutex, PoisonError};

use crate::random::word;
use crate::sources::dataset::Dataset;
use crate::sources::permutation::permuted;

/// Batches of a group. More of them have lengths that are more alike, and lie further from a random order.
const BATCHES: u64 = 50;

/// The order of each pass over a dataset. Samples in random order are taken in groups of 50 batches. A group is sorted by
/// length and cut into batches, and its batches come in random order. So each sample comes once a pass, and the order
/// follows from the lengths and the seed.
pub struct LengthOrder {
    /// Samples of a batch.
    batch: u64,
    /// The passes that were asked for last, by key. Threads that read and count are at most one pass apart.
    passes: Mutex<Vec<(u64, Arc<Vec<u64>>)>>,
}

impl LengthOrder {
    /// For batches of so many samples, over all ranks.
    pub(crate) fn new(batch: usize) -> LengthOrder {
        LengthOrder { batch: batch as u64, passes: Mutex::default() }
    }

    /// The sample at a place of a pass over `dataset`. `epoch` is the number of the pass, `key` that of its random order.
    pub(crate) fn sample(&self, dataset: &Dataset, epoch: u64, place: u64, key: u64) -> u64 {
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = passes.iter().find(|(of, _)| *of == key).map(|(_, pass)| pass.clone());
        let pass = known.unwrap_or_else(|| {
            let before = epoch * dataset.count();
            let made = Arc::new(order(dataset.count(), before, self.batch, key, |sample| dataset.length(sample)));
            passes.insert(0, (key, made.clone()));
            passes.truncate(2);
            made
        });
        pass[place as usize]
    }
}

/// The order of a pass over `count` samples, of which `length` gives each one's. `before` samples came in earlier passes.
fn order<L: Ord>(count: u64, before: u64, batch: u64, key: u64, length: impl Fn(u64) -> L) -> Vec<u64> {
    let mut random: Vec<u64> = (0..count).map(|place| permuted(place, count, key)).collect();
    // The batch that the pass before began.
    let rest = before.next_multiple_of(batch) - before;
    let begun = random.split_off(rest.min(count) as usize);
    let mut pass = random;
    for (number, group) in (0..).zip(begun.chunks((BATCHES * batch) as usize)) {
        let mut sorted = group.to_vec();
        sorted.sort_by_key(|sample| length(*sample));
        let (whole, rest) = sorted.split_at(sorted.len() - sorted.len() % batch as usize);
        let batches = whole.len() as u64 / batch;
        let key = word(key, number);
        for place in 0..batches {
            let at = (permuted(place, batches, key) * batch) as usize;
            pass.extend(&whole[at..at + batch as usize]);
        }
        pass.extend(rest);
    }
    pass
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(sample: u64) -> u64 {
        word(9, sample) % 1000
    }

    #[test]
    fn a_pass_has_each_sample_once_and_batches_of_like_lengths() {
        for (count, before, batch) in [(1000, 0, 8), (1003, 1003, 8), (5, 3, 8), (401, 802, 1), (1, 0, 4)] {
            let pass = order(count, before, batch, 7, length);
            let mut all = pass.clone();
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<u64>>());
            assert_eq!(pass, order(count, before, batch, 7, length));
            if count < 1000 {
                continue;
            }
            assert_ne!(pass, order(count, before, batch, 8, length));
            // Batches begin where those of the run do.
            let first = (before.next_multiple_of(batch) - before) as usize;
            let spread = |samples: &[u64]| {
                let lengths = || samples.iter().map(|sample| length(*sample));
                lengths().max().unwrap() - lengths().min().unwrap()
            };
            let whole: Vec<u64> = pass[first..].chunks_exact(batch as usize).map(spread).collect();
            let mean = whole.iter().sum::<u64>() as f64 / whole.len() as f64;
            assert!(mean < 60.0, "{count}, {before}: {mean}");
            // Batches of a group are not sorted.
            let longest: Vec<u64> = pass[first..].chunks(batch as usize).map(|batch| length(batch[0])).collect();
            assert!(!longest[..50].is_sorted() && !longest[..50].is_sorted_by(|a, b| a >= b));
        }
    }
}
