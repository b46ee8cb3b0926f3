//! Samples of files: a pure function from a sample's number to its tokens.
//!
//! Sample `n` is the `k`-th sample of dataset `d` ([`Blend::at`]). A dataset goes through all its samples once per epoch, in
//! an order given by seed, dataset and epoch ([`Order`]). So the position of a run in its data is one number, the number
//! of samples seen. Ranks and microbatches only divide the sample numbers among themselves.

use common::UserError;
use device::{HostValues, Staging};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::identity::Identities;
use crate::source::{Displaced, Epoch, SampleCounts, Source, Split, rows};
use crate::sources::blend::Blend;
use crate::sources::conversations::Conversations;
use crate::sources::dataset::Dataset;
use crate::sources::document_ends::DocumentEnds;
use crate::sources::order::Order;
use crate::text::conversation::ChatTemplate;
use crate::text::tokenizer::TokenizerCopy;

/// Datasets that are read in the shares of a blend.
pub struct Mixture {
    /// Gives the dataset of a sample.
    pub blend: Blend,
    /// The datasets. Each has at least one sample.
    pub datasets: Vec<Dataset>,
}

/// A source of tokens from files.
pub struct TokenSource {
    /// The datasets to train on. None if the source is there to evaluate alone.
    pub training: Vec<Dataset>,
    /// The order of the training samples.
    pub order: Order,
    /// The datasets to evaluate on, if any.
    pub validation: Option<Mixture>,
    /// Inputs of a sample. A sample has one token more.
    pub seq: usize,
    /// A description of the source for the plan box.
    pub name: String,
    /// Notices for the user about the files that were read, a line each.
    pub notices: Vec<String>,
    /// The tokenizer that made the tokens, if the data or the configuration name the tokenizer.
    pub tokenizer: Option<TokenizerCopy>,
    /// The size of that tokenizer's vocabulary, if known.
    pub tokenizer_vocab: Option<usize>,
    /// The template that made text of conversations.
    pub chat_template: Option<ChatTemplate>,
    /// The treatment of documents within windows of text, if documents are told apart.
    pub ends: Option<DocumentEnds>,
}

impl Mixture {
    /// The number of different samples.
    fn samples(&self) -> u64 {
        self.datasets.iter().map(Dataset::count).sum()
    }

    /// The dataset of sample `number` of the samples that each come once, and the sample's place there. They are in the
    /// order of the blend: a dataset that has come to its end gives no more. `None` beyond the last.
    fn locate_once(&self, number: u64) -> Option<(&Dataset, u64)> {
        if number >= self.samples() {
            return None;
        }
        let of_dataset = |(at, dataset): (usize, &Dataset), end| self.blend.before(at, end).min(dataset.count());
        let different = |end| self.datasets.iter().enumerate().map(|each| of_dataset(each, end)).sum::<u64>();
        // The first end of the blend's order before which so many different samples come, and this one.
        let (mut low, mut high) = (number, number + 1);
        while different(high) <= number {
            (low, high) = (high, 2 * high);
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if different(middle) <= number { low = middle } else { high = middle }
        }
        let (dataset, place) = self.blend.at(low);
        Some((&self.datasets[dataset], place))
    }
}

/// Adds the identities of datasets. `key` is the option that names them.
fn identify(key: &str, datasets: &[Dataset], all: &mut Identities) -> Result<(), DataError> {
    for (number, dataset) in datasets.iter().enumerate() {
        let name = if datasets.len() == 1 { key.into() } else { format!("{key}, dataset {}", number + 1) };
        if let Some(identity) = dataset.identity()? {
            all.insert(name, identity);
        }
    }
    Ok(())
}

impl TokenSource {
    /// Values of a sample's row.
    pub fn width(&self) -> usize {
        match self.datasets().next() {
            Some(Dataset::Conversations(conversations)) => conversations.width(),
            _ => self.ends.map_or(self.seq + 1, |ends| ends.width(self.seq)),
        }
    }

    /// All datasets.
    fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        let validation = self.validation.iter().flat_map(|mixture| &mixture.datasets);
        self.training.iter().chain(validation)
    }

    /// Dataset and window of a training sample. Each epoch of a dataset is in another order.
    pub fn training_window(&self, number: u64) -> (usize, u64) {
        self.order.sample(&self.training, number)
    }

    /// The same samples in an order with like lengths in each batch of `batch` samples, if the samples are conversations
    /// of one dataset.
    #[must_use]
    pub fn grouped_by_length(self, batch: usize) -> TokenSource {
        TokenSource { order: self.order.grouped(Some(batch)), ..self }
    }

    /// The number of different training samples.
    pub fn samples(&self) -> u64 {
        self.training.iter().map(Dataset::count).sum()
    }

    /// The counts of a sample, by dataset and place in the dataset.
    fn counts_of(&self, dataset: &Dataset, place: u64) -> Result<SampleCounts, DataError> {
        match (dataset, &self.ends) {
            (Dataset::Conversations(conversations), _) => Ok(conversations.counts(place)),
            (Dataset::Windows(_), None) => {
                let tokens = self.seq as u64;
                Ok(SampleCounts { targets: tokens, tokens, documents: 1 })
            }
            (Dataset::Windows(windows), Some(ends)) => {
                let mut window = vec![0; self.seq + 1];
                windows.read(place, &mut window)?;
                Ok(ends.counts(&window[..self.seq]))
            }
        }
    }

    /// Writes a sample into `row`, by dataset and place in the dataset.
    fn read(&self, dataset: &Dataset, place: u64, row: &mut [i32]) -> Result<(), DataError> {
        match (dataset, &self.ends) {
            (Dataset::Conversations(conversations), _) => {
                conversations.read(place, row);
                Ok(())
            }
            (Dataset::Windows(windows), None) => windows.read(place, row),
            (Dataset::Windows(windows), Some(ends)) => {
                windows.read(place, &mut row[..=self.seq])?;
                ends.divide(self.seq, row)
            }
        }
    }

    /// Writes a row without targets that have a loss.
    fn clear(&self, row: &mut [i32]) {
        match (self.datasets().next(), &self.ends) {
            (Some(Dataset::Conversations(conversations)), _) => conversations.clear(row),
            (_, None) => row.fill(-1),
            (_, Some(ends)) => ends.clear(self.seq, row),
        }
    }

    /// Writes a sample into `row`, of [`TokenSource::width`] values. A sample to evaluate on beyond the last is a row without
    /// targets.
    ///
    /// # Errors
    /// The data changed since they were opened, or there are no data for validation.
    pub fn sample(&self, split: Split, number: u64, row: &mut [i32]) -> Result<(), DataError> {
        match self.locate(split, number)? {
            Some((dataset, place)) => self.read(dataset, place, row),
            None => {
                self.clear(row);
                Ok(())
            }
        }
    }

    /// The dataset of a sample, and the sample's place there. `None` beyond the last sample to evaluate on.
    fn locate(&self, split: Split, number: u64) -> Result<Option<(&Dataset, u64)>, DataError> {
        if split == Split::Train {
            let (dataset, place) = self.training_window(number);
            return Ok(Some((&self.training[dataset], place)));
        }
        let Some(validation) = &self.validation else {
            let what = format!("{} has no samples to evaluate on", self.name);
            return Err(DataError { what, fix: "set data.split below 1, or data.validation_path".into() });
        };
        Ok(validation.locate_once(number))
    }
}

impl Source for TokenSource {
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        let samples = first..first + count as u64;
        rows(samples, self.width(), staging, |number, row| self.sample(split, number, row)).map(HostValues::I32)
    }

    fn counts(&self, split: Split, first: u64, count: usize) -> Result<Option<SampleCounts>, DataError> {
        let is_text = self.training.iter().all(|dataset| matches!(dataset, Dataset::Windows(_)));
        if split == Split::Train && self.ends.is_none() && is_text {
            return Ok(None);
        }
        let of_sample = |number| match self.locate(split, number)? {
            Some((dataset, place)) => self.counts_of(dataset, place),
            None => Ok(SampleCounts::default()),
        };
        (first..first + count as u64).map(of_sample).sum::<Result<SampleCounts, DataError>>().map(Some)
    }

    fn longest(&self, split: Split, first: u64, count: usize) -> Result<Option<usize>, DataError> {
        let mut longest = None;
        for number in first..first + count as u64 {
            let Some((dataset, place)) = self.locate(split, number)? else { break };
            let Some(length) = dataset.length(place) else { return Ok(None) };
            longest = longest.max(Some(length));
        }
        Ok(longest)
    }

    fn validates(&self) -> bool {
        self.validation.is_some()
    }

    fn validation_samples(&self) -> Option<u64> {
        self.validation.as_ref().map(Mixture::samples)
    }

    fn epoch(&self) -> Option<Epoch> {
        let conversations = self.training.iter().map(Dataset::conversations).sum();
        Some(Epoch { samples: self.samples(), conversations })
    }

    fn identities(&self) -> Result<Identities, DataError> {
        let mut all = Identities::new();
        let of_validation = self.validation.iter().map(|mixture| ("data.validation_path", &mixture.datasets));
        for (key, datasets) in [("data.path", &self.training)].into_iter().chain(of_validation) {
            identify(key, datasets, &mut all)?;
        }
        Ok(all)
    }

    fn begun(&self, position: u64) -> u64 {
        self.order.begun(&self.training, position)
    }

    fn displaced(
        &self,
        before: &DataConfig,
        grouped: Option<usize>,
        position: u64,
    ) -> Result<Option<Displaced>, UserError> {
        let before = Order::of(before, grouped)?;
        Ok(Some(self.order.displaced(&before, &self.training, position)))
    }

    fn parts_with_pairs(&self) -> Vec<&Conversations> {
        let parts = self.datasets().filter_map(|dataset| match dataset {
            Dataset::Conversations(conversations) => Some(conversations),
            Dataset::Windows(_) => None,
        });
        parts.filter(|part| part.pairs() > 0).collect()
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
