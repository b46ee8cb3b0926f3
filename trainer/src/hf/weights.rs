//! The weights that a model begins with: those of a folder, adapters over them, and rows of new tokens.

use std::ops::Range;
use std::path::Path;

use common::UserError;
use engine::model::{GptShape, is_adapter};

use super::names::{Entry, Naming, entries};
use super::peft::FittedAdapters;
use super::read::{ROWS_AT_ONCE, WeightFolder};

/// The tables with a row for each token: the embedding and the head.
const TABLES: [&str; 2] = ["wte.weight", "lm_head.weight"];

/// The weights of a model.
pub(super) struct Weights<'p> {
    folder: WeightFolder,
    /// The parameters that the folder has.
    entries: Vec<Entry>,
    /// The adapters of PEFT over the model of the folder.
    adapters: Option<&'p FittedAdapters>,
    /// Rows of the folder's tables.
    vocab: usize,
    /// The tokens that the folder's tokenizer lacks. Their rows begin as the mean of the rows before them.
    new_tokens: Range<usize>,
}

impl<'p> Weights<'p> {
    /// The weights of a model. `shape` is that of the folder's model, with adapters if there are such.
    ///
    /// # Errors
    /// Files that are missing, damaged, or have tensors of another model.
    pub(super) fn open(
        (folder, naming): (&Path, Naming),
        adapters: Option<&'p FittedAdapters>,
        shape: &GptShape,
        new_tokens: Range<usize>,
    ) -> Result<Weights<'p>, UserError> {
        let own = GptShape { lora: shape.lora.clone().filter(|_| adapters.is_none()), ..shape.clone() };
        let (folder, entries_here) = (WeightFolder::open(folder, naming)?, entries(&own, naming));
        folder.check(&entries_here)?;
        let weights = Weights { folder, entries: entries_here, adapters, vocab: shape.vocab, new_tokens };
        if let Some(adapters) = adapters {
            adapters.check(&entries(shape, Naming::Ours))?;
        }
        Ok(weights)
    }

    /// Fails if the files of a tied model have a head that is not the embedding.
    ///
    /// # Errors
    /// Names the folder; tensors that cannot be read.
    pub(super) fn check_tied_head(&self) -> Result<(), UserError> {
        self.folder.check_tied_head(&self.entries)
    }

    /// Some rows of a parameter in our layout.
    ///
    /// # Errors
    /// As [`WeightFolder::rows`].
    pub(super) fn rows(&self, entry: &Entry, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        match self.adapters {
            Some(adapters) if is_adapter(&entry.name) => adapters.rows(entry, rows),
            _ if !self.new_tokens.is_empty() && TABLES.contains(&&*entry.name) => self.rows_of_table(entry, rows),
            _ => self.folder.rows(entry, rows),
        }
    }

    /// Some rows of a table. New tokens have the mean of the rows of all tokens before them.
    fn rows_of_table(&self, entry: &Entry, rows: Range<usize>) -> Result<Vec<f32>, UserError> {
        let (width, vocab) = (entry.width(), self.vocab);
        let mut held = Entry { shape: vec![vocab, width], ..entry.clone() };
        held.parts.iter_mut().for_each(|part| part.rows = 0..vocab);
        let mut values = self.folder.rows(&held, rows.start.min(vocab)..rows.end.min(vocab))?;
        values.resize(rows.len() * width, 0.0);
        let is_new = |row: &usize| *row >= vocab || self.new_tokens.contains(row);
        let new: Vec<usize> = rows.clone().filter(is_new).collect();
        if !new.is_empty() {
            let mean = self.mean(&held, self.new_tokens.start.min(vocab))?;
            new.iter().for_each(|row| values[(row - rows.start) * width..][..width].copy_from_slice(&mean));
        }
        Ok(values)
    }

    /// The mean of the first rows of a table.
    fn mean(&self, table: &Entry, rows: usize) -> Result<Vec<f32>, UserError> {
        let mut sums = vec![0.0f64; table.width()];
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let some = self.folder.rows(table, first..rows.min(first + ROWS_AT_ONCE))?;
            for row in some.chunks(table.width()) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        Ok(sums.iter().map(|sum| (sum / rows.max(1) as f64) as f32).collect())
    }
}
