//! The embedded source: letters of an order-2 Markov chain. Its lowest possible loss is known exactly.
//!
//! The next letter depends on the two letters before it. The last letter alone predicts much less. A model without
//! attention sees one letter at a time. So its loss stays far above that of a model with attention.

use device::{HostValues, Staging};

use crate::error::DataError;
use crate::random::{uniform, word};
use crate::source::{Source, Split, rows};

/// Letters of the alphabet, `a` to `l`.
const LETTERS: usize = 12;
/// The first letter, as a byte.
const FIRST: i32 = b'a' as i32;
/// Probabilities of the four most likely letters after a pair. The other letters share the rest.
const FAVOURITES: [f64; 4] = [0.55, 0.25, 0.10, 0.05];

/// A seeded order-2 Markov source.
pub struct MarkovSource {
    seed: u64,
    seq: usize,
    /// `next[pair * LETTERS + letter]`: probability of the letter after the pair `(before last, last)`.
    next: Vec<f64>,
    /// Stationary probability of each pair.
    pairs: Vec<f64>,
}

impl MarkovSource {
    /// The source of that seed, in samples of `seq` tokens.
    pub fn new(seed: u64, seq: usize) -> MarkovSource {
        let mut next = vec![0.0; LETTERS * LETTERS * LETTERS];
        for (pair, row) in next.chunks_mut(LETTERS).enumerate() {
            // A permutation of the letters for each pair. Its first letters are the favourites.
            let mut order: Vec<usize> = (0..LETTERS).collect();
            order.sort_by_key(|&letter| word(seed ^ 0x6d61_726b_6f76, (pair * LETTERS + letter) as u64));
            let rest = (1.0 - FAVOURITES.iter().sum::<f64>()) / (LETTERS - FAVOURITES.len()) as f64;
            for (rank, &letter) in order.iter().enumerate() {
                row[letter] = FAVOURITES.get(rank).copied().unwrap_or(rest);
            }
        }
        let pairs = stationary(&next);
        MarkovSource { seed, seq, next, pairs }
    }

    /// The exact entropy rate in nats per letter: the entropy of a letter given all letters before it.
    pub fn entropy_rate(&self) -> f64 {
        self.next.chunks(LETTERS).zip(&self.pairs).map(|(row, p)| p * entropy(row)).sum()
    }

    /// The exact entropy of a letter given only the letter before, in nats.
    pub fn last_letter_entropy(&self) -> f64 {
        (0..LETTERS)
            .map(|last| {
                let mut joint = vec![0.0; LETTERS];
                for before in 0..LETTERS {
                    let pair = before * LETTERS + last;
                    let row = &self.next[pair * LETTERS..(pair + 1) * LETTERS];
                    joint.iter_mut().zip(row).for_each(|(sum, p)| *sum += self.pairs[pair] * p);
                }
                let total: f64 = joint.iter().sum();
                joint.iter_mut().for_each(|p| *p /= total);
                total * entropy(&joint)
            })
            .sum()
    }

    /// One sample: `seq + 1` letters as bytes, starting from the stationary distribution of pairs.
    fn fill(&self, stream: u64, row: &mut [i32]) {
        let seed = word(self.seed, stream);
        let mut pair = draw(&self.pairs, uniform(seed, 0));
        for (i, token) in row.iter_mut().enumerate() {
            // The first two letters are the pair itself.
            *token = FIRST
                + match i {
                    0 => pair / LETTERS,
                    1 => pair % LETTERS,
                    _ => {
                        let letter = draw(&self.next[pair * LETTERS..(pair + 1) * LETTERS], uniform(seed, i as u64));
                        pair = pair % LETTERS * LETTERS + letter;
                        letter
                    }
                } as i32;
        }
    }
}

impl Source for MarkovSource {
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        // Training takes even streams, validation odd ones.
        let odd = u64::from(split == Split::Validation);
        let tokens = rows(first..first + count as u64, self.seq + 1, staging, |number, row| {
            self.fill(2 * number + odd, row);
            Ok(())
        });
        tokens.map(HostValues::I32)
    }

    /// The mean over a sample's positions: the first prediction knows one letter, all others at least two.
    fn floor(&self) -> Option<f64> {
        Some((self.last_letter_entropy() + (self.seq - 1) as f64 * self.entropy_rate()) / self.seq as f64)
    }

    fn describe(&self) -> String {
        format!("embedded Markov source of order 2, {LETTERS} letters, {:.4} nats per letter", self.entropy_rate())
    }
}

fn entropy(distribution: &[f64]) -> f64 {
    distribution.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
}

/// The first index at which the running sum of the distribution exceeds `at`.
fn draw(distribution: &[f64], at: f64) -> usize {
    let mut sum = 0.0;
    for (index, p) in distribution.iter().enumerate() {
        sum += p;
        if at < sum {
            return index;
        }
    }
    distribution.len() - 1
}

/// Stationary probabilities of the pairs, by power iteration. It converges: every pair can be reached from every other.
fn stationary(next: &[f64]) -> Vec<f64> {
    let mut pairs = vec![1.0 / (LETTERS * LETTERS) as f64; LETTERS * LETTERS];
    for _ in 0..1000 {
        let mut after = vec![0.0; pairs.len()];
        for (pair, p) in pairs.iter().enumerate() {
            for letter in 0..LETTERS {
                after[pair % LETTERS * LETTERS + letter] += p * next[pair * LETTERS + letter];
            }
        }
        pairs = after;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entropy_rate_is_what_a_long_text_shows() {
        let source = MarkovSource::new(1234, 50_000);
        let mut row = vec![0; 50_001];
        source.fill(0, &mut row);
        let letters: Vec<usize> = row.iter().map(|token| (token - FIRST) as usize).collect();
        let surprise = |w: &[usize]| -source.next[(w[0] * LETTERS + w[1]) * LETTERS + w[2]].ln();
        let mean = letters.windows(3).map(surprise).sum::<f64>() / (letters.len() - 2) as f64;
        assert!((mean - source.entropy_rate()).abs() < 0.02, "{mean} is not {}", source.entropy_rate());
    }

    #[test]
    fn the_stationary_distribution_is_left_as_it_is_by_a_step() {
        let source = MarkovSource::new(7, 8);
        assert!((source.pairs.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        for last in 0..LETTERS {
            for letter in 0..LETTERS {
                let from: f64 = (0..LETTERS)
                    .map(|before| {
                        let pair = before * LETTERS + last;
                        source.pairs[pair] * source.next[pair * LETTERS + letter]
                    })
                    .sum();
                assert!((from - source.pairs[last * LETTERS + letter]).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn one_letter_tells_far_less_than_two() {
        let source = MarkovSource::new(1234, 64);
        let (one, two) = (source.last_letter_entropy(), source.entropy_rate());
        assert!(one > 1.5 * two, "{one} against {two}");
    }

    #[test]
    fn a_sample_is_a_function_of_its_number_and_validation_is_apart() {
        let source = MarkovSource::new(1234, 64);
        let batch = |split, first, count| source.batch(split, first, count, &Staging::default()).unwrap();
        let (HostValues::I32(four), HostValues::I32(one)) = (batch(Split::Train, 8, 4), batch(Split::Train, 9, 1))
        else {
            unreachable!("letters are tokens")
        };
        assert_eq!((four.len(), &four[65..130]), (4 * 65, &one[..]));
        assert_ne!(HostValues::I32(four), batch(Split::Validation, 8, 4));
    }
}
