//! Samples of files: a pure function from a sample's number to its tokens.
//!
//! Sample `n` is the `k`-th sample of dataset `d` ([`Blend::at`]). A dataset goes through all its samples once per epoch, in
//! an order given by seed, dataset and epoch ([`permuted`]). So the position of a run in its data is one number, the number
//! of samples seen. Ranks and microbatches only divide the sample numbers among themselves.

use std::ops::Range;

use device::{HostValues, Staging};

use crate::error::DataError;
use crate::identity::Identities;
use crate::random::word;
use crate::source::{Epoch, Source, Split, rows};
use crate::sources::blend::Blend;
use crate::sources::dataset::Dataset;
use crate::sources::length_order::LengthOrder;
use crate::sources::permutation::permuted;
use crate::text::chat_template::ChatTemplate;
use crate::text::tokenizer_copy::TokenizerCopy;

/// Datasets that are read in the shares of a blend.
pub struct Mixture {
    /// Gives the dataset of a sample.
    pub blend: Blend,
    /// The datasets. Each has at least one sample.
    pub datasets: Vec<Dataset>,
}

/// A source of tokens from files.
pub struct TokenSource {
    /// The datasets to train on.
    pub training: Mixture,
    /// The datasets to evaluate on, if any.
    pub validation: Option<Mixture>,
    /// Inputs of a sample. A sample has one token more.
    pub seq: usize,
    /// Seed of the order.
    pub seed: u64,
    /// A description of the source for the plan box.
    pub name: String,
    /// Notices for the user about the files that were read, a line each.
    pub notices: Vec<String>,
    /// The tokenizer that made the tokens, if the data or the configuration name it.
    pub tokenizer: Option<TokenizerCopy>,
    /// The size of that tokenizer's vocabulary, if it is known.
    pub tokenizer_vocab: Option<usize>,
    /// The template that made text of conversations.
    pub chat_template: Option<ChatTemplate>,
    /// The order of training samples, if those of a batch have like lengths.
    pub by_length: Option<LengthOrder>,
}

impl Mixture {
    /// Dataset, epoch and place in the epoch of a sample.
    fn locate(&self, number: u64) -> (usize, u64, u64) {
        let (dataset, number) = self.blend.at(number);
        let count = self.datasets[dataset].count();
        (dataset, number / count, number % count)
    }

    /// Adds the identities of the mixture's datasets. `key` is the option that names them.
    fn identify(&self, key: &str, all: &mut Identities) -> Result<(), DataError> {
        for (number, dataset) in self.datasets.iter().enumerate() {
            let name = if self.datasets.len() == 1 { key.into() } else { format!("{key}, dataset {}", number + 1) };
            if let Some(identity) = dataset.identity()? {
                all.insert(name, identity);
            }
        }
        Ok(())
    }
}

impl TokenSource {
    /// Values of a sample's row.
    pub fn width(&self) -> usize {
        self.training.datasets[0].width(self.seq)
    }

    /// Dataset and window of a training sample. Each epoch of a dataset is in another order.
    pub fn training_window(&self, number: u64) -> (usize, u64) {
        let (dataset, epoch, place) = self.training.locate(number);
        let key = word(word(self.seed, dataset as u64), epoch);
        let of = &self.training.datasets[dataset];
        let window = match &self.by_length {
            Some(order) => order.sample(of, epoch, place, key),
            None => permuted(place, of.count(), key),
        };
        (dataset, window)
    }

    /// The same samples in an order in which those of a batch of `batch` samples have like lengths, if the samples are
    /// conversations of one dataset.
    #[must_use]
    pub fn grouped_by_length(self, batch: usize) -> TokenSource {
        TokenSource { by_length: Some(LengthOrder::new(batch)), ..self }
    }

    /// The number of different training samples.
    pub fn samples(&self) -> u64 {
        self.training.datasets.iter().map(Dataset::count).sum()
    }

    /// The number of targets of a range of training samples. Samples are counted as in [`TokenSource::in_order`].
    pub fn targets_in_order(&self, range: Range<u64>) -> u64 {
        let mut before = 0;
        let of_dataset = |dataset: &Dataset| {
            let within = |at: u64| at.clamp(before, before + dataset.count()) - before;
            let part = within(range.start)..within(range.end);
            before += dataset.count();
            dataset.targets(part, self.seq)
        };
        self.training.datasets.iter().map(of_dataset).sum()
    }

    /// Writes a training sample into `row`, of [`TokenSource::width`] values. Here `number`, below [`TokenSource::samples`],
    /// counts the samples as they lie in the data, one dataset after the other.
    ///
    /// # Errors
    /// The data changed since they were opened; there is no such sample.
    pub fn in_order(&self, mut number: u64, row: &mut [i32]) -> Result<(), DataError> {
        for dataset in &self.training.datasets {
            if number < dataset.count() {
                return dataset.read(number, row);
            }
            number -= dataset.count();
        }
        let what = format!("{} has no sample {number} beyond its last", self.name);
        Err(DataError { what, fix: "read samples that are there".into() })
    }

    /// Writes a sample into `row`, of [`TokenSource::width`] values. Validation goes through its datasets in order,
    /// over and over.
    ///
    /// # Errors
    /// The data changed since they were opened, or there are no data for validation.
    pub fn sample(&self, split: Split, number: u64, row: &mut [i32]) -> Result<(), DataError> {
        let (dataset, place) = self.locate(split, number)?;
        dataset.read(place, row)
    }

    /// The dataset of a sample, and its place there.
    fn locate(&self, split: Split, number: u64) -> Result<(&Dataset, u64), DataError> {
        if split == Split::Train {
            let (dataset, place) = self.training_window(number);
            return Ok((&self.training.datasets[dataset], place));
        }
        let Some(validation) = &self.validation else {
            let what = format!("{} has no samples to evaluate on", self.name);
            return Err(DataError { what, fix: "set data.split below 1, or data.validation_path".into() });
        };
        let (dataset, _, place) = validation.locate(number);
        Ok((&validation.datasets[dataset], place))
    }
}

impl Source for TokenSource {
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        let samples = first..first + count as u64;
        rows(samples, self.width(), staging, |number, row| self.sample(split, number, row)).map(HostValues::I32)
    }

    fn targets(&self, split: Split, first: u64, count: usize) -> Result<Option<u64>, DataError> {
        if matches!(self.training.datasets[0], Dataset::Windows(_)) {
            return Ok(None);
        }
        let of_sample = |number| {
            let (dataset, place) = self.locate(split, number)?;
            Ok(dataset.targets(place..place + 1, self.seq))
        };
        (first..first + count as u64).map(of_sample).sum::<Result<u64, DataError>>().map(Some)
    }

    fn longest(&self, split: Split, first: u64, count: usize) -> Result<Option<usize>, DataError> {
        let mut longest = None;
        for number in first..first + count as u64 {
            let (dataset, place) = self.locate(split, number)?;
            let Some(length) = dataset.length(place) else { return Ok(None) };
            longest = longest.max(Some(length));
        }
        Ok(longest)
    }

    fn validates(&self) -> bool {
        self.validation.is_some()
    }

    fn epoch(&self) -> Option<Epoch> {
        let conversations = self.training.datasets.iter().map(Dataset::conversations).sum();
        Some(Epoch { samples: self.samples(), conversations })
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

    fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }
}
