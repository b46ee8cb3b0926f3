//! Samples of token data: a pure function from a sample's number to its tokens.
//!
//! Sample `n` belongs to dataset `d` and is its `k`-th ([`Blend::at`]). A dataset goes through all its windows once an epoch,
//! in an order given by (seed, dataset, epoch) ([`permuted`]). A run's place in the data is therefore one number, the
//! samples it has seen, and ranks and microbatches only divide the numbers among them.

use device::Batch;

use super::blend::Blend;
use super::corpus::Windows;
use super::permutation::permuted;
use super::{DataError, Identities, Source, Split, token_batch, word};

/// Datasets that are read in the shares of a blend.
pub struct Mixture {
    /// Which dataset a sample is from.
    pub blend: Blend,
    /// The datasets, none without windows.
    pub datasets: Vec<Windows>,
}

/// A source of tokens that were read from files.
pub struct TokenSource {
    /// What is trained on.
    pub training: Mixture,
    /// What is evaluated on, if anything.
    pub validation: Option<Mixture>,
    /// Tokens of a sample, less the last target.
    pub seq: usize,
    /// Seed of the order.
    pub seed: u64,
    /// What it is, for people.
    pub name: String,
}

impl Mixture {
    /// Dataset, epoch and place in the epoch of a sample.
    fn place(&self, number: u64) -> (usize, u64, u64) {
        let (dataset, number) = self.blend.at(number);
        let count = self.datasets[dataset].count;
        (dataset, number / count, number % count)
    }

    /// Adds by what its datasets, which option `key` names, are known again.
    fn identify(&self, key: &str, all: &mut Identities) -> Result<(), DataError> {
        for (number, windows) in self.datasets.iter().enumerate() {
            let name = if self.datasets.len() == 1 { key.into() } else { format!("{key}, dataset {}", number + 1) };
            if let Some(identity) = windows.identity()? {
                all.insert(name, identity);
            }
        }
        Ok(())
    }
}

impl TokenSource {
    /// Dataset and window of a sample that is trained on: each epoch of a dataset is in another order.
    pub fn training_window(&self, number: u64) -> (usize, u64) {
        let (dataset, epoch, place) = self.training.place(number);
        let key = word(word(self.seed, dataset as u64), epoch);
        (dataset, permuted(place, self.training.datasets[dataset].count, key))
    }

    /// Writes the `seq + 1` tokens of a sample into `row`. Validation goes through its datasets in order, round and round.
    ///
    /// # Errors
    /// The data changed since they were opened, or there are none for validation.
    pub fn sample(&self, split: Split, number: u64, row: &mut [i32]) -> Result<(), DataError> {
        if split == Split::Train {
            let (dataset, window) = self.training_window(number);
            return self.training.datasets[dataset].read(window, row);
        }
        let Some(validation) = &self.validation else {
            let what = format!("{} keeps nothing to evaluate on", self.name);
            return Err(DataError { what, fix: "set data.split below 1, or data.validation_path".into() });
        };
        let (dataset, _, window) = validation.place(number);
        validation.datasets[dataset].read(window, row)
    }
}

impl Source for TokenSource {
    fn batch(&self, split: Split, first: u64, count: usize) -> Result<Batch, DataError> {
        token_batch(first, count, self.seq, |number, row| self.sample(split, number, row))
    }

    fn validates(&self) -> bool {
        self.validation.is_some()
    }

    fn identities(&self) -> Result<Identities, DataError> {
        let mut all = Identities::new();
        self.training.identify("data.path", &mut all)?;
        self.validation.iter().try_for_each(|mixture| mixture.identify("data.validation_path", &mut all))?;
        Ok(all)
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
