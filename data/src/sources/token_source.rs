//! Samples of token files: a pure function from a sample's number to its tokens.
//!
//! Sample `n` is the `k`-th sample of dataset `d` ([`Blend::at`]). A dataset goes through all its windows once per epoch, in
//! an order given by seed, dataset and epoch ([`permuted`]). So the position of a run in its data is one number, the number
//! of samples seen. Ranks and microbatches only divide the sample numbers among themselves.

use device::{HostValues, Staging};

use crate::error::DataError;
use crate::identity::Identities;
use crate::random::word;
use crate::source::{Source, Split, rows};
use crate::sources::blend::Blend;
use crate::sources::corpus::Windows;
use crate::sources::permutation::permuted;
use crate::text::tokenizer_copy::TokenizerCopy;

/// Datasets that are read in the shares of a blend.
pub struct Mixture {
    /// Which dataset a sample is from.
    pub blend: Blend,
    /// The datasets. Each has at least one window.
    pub datasets: Vec<Windows>,
}

/// A source of tokens from files.
pub struct TokenSource {
    /// What is trained on.
    pub training: Mixture,
    /// What is evaluated on, if anything.
    pub validation: Option<Mixture>,
    /// Inputs of a sample, which has one token more.
    pub seq: usize,
    /// Seed of the order.
    pub seed: u64,
    /// What it is, for the plan box.
    pub name: String,
    /// What the user should know about the files that were read, a line each.
    pub notices: Vec<String>,
    /// The tokenizer that made the tokens, where the data or the configuration say it.
    pub tokenizer: Option<TokenizerCopy>,
}

impl Mixture {
    /// Dataset, epoch and place in the epoch of a sample.
    fn place(&self, number: u64) -> (usize, u64, u64) {
        let (dataset, number) = self.blend.at(number);
        let count = self.datasets[dataset].count;
        (dataset, number / count, number % count)
    }

    /// Adds what identifies its datasets. `key` is the option that names them.
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
    /// Dataset and window of a training sample. Each epoch of a dataset is in another order.
    pub fn training_window(&self, number: u64) -> (usize, u64) {
        let (dataset, epoch, place) = self.training.place(number);
        let key = word(word(self.seed, dataset as u64), epoch);
        (dataset, permuted(place, self.training.datasets[dataset].count, key))
    }

    /// The number of different training samples.
    pub fn samples(&self) -> u64 {
        self.training.datasets.iter().map(|windows| windows.count).sum()
    }

    /// Writes the `seq + 1` tokens of a training sample into `row`. Here `number`, below [`TokenSource::samples`], counts the
    /// samples as they lie in the data, one dataset after the other.
    ///
    /// # Errors
    /// The data changed since they were opened; there is no such sample.
    pub fn in_order(&self, mut number: u64, row: &mut [i32]) -> Result<(), DataError> {
        for windows in &self.training.datasets {
            if number < windows.count {
                return windows.read(number, row);
            }
            number -= windows.count;
        }
        let what = format!("{} has no sample {number} beyond its last", self.name);
        Err(DataError { what, fix: "read samples that are there".into() })
    }

    /// Writes the `seq + 1` tokens of a sample into `row`. Validation goes through its datasets in order, again and again.
    ///
    /// # Errors
    /// The data changed since they were opened, or there are no data for validation.
    pub fn sample(&self, split: Split, number: u64, row: &mut [i32]) -> Result<(), DataError> {
        if split == Split::Train {
            let (dataset, window) = self.training_window(number);
            return self.training.datasets[dataset].read(window, row);
        }
        let Some(validation) = &self.validation else {
            let what = format!("{} has no samples to evaluate on", self.name);
            return Err(DataError { what, fix: "set data.split below 1, or data.validation_path".into() });
        };
        let (dataset, _, window) = validation.place(number);
        validation.datasets[dataset].read(window, row)
    }
}

impl Source for TokenSource {
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        let samples = first..first + count as u64;
        rows(samples, self.seq + 1, staging, |number, row| self.sample(split, number, row)).map(HostValues::I32)
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

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn tokenizer(&self) -> Option<&TokenizerCopy> {
        self.tokenizer.as_ref()
    }
}
