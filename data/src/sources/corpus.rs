//! The tokens of many files as one stream, and the stream's windows, which become samples.

use std::sync::Arc;

use common::UserError;
use sha2::{Digest, Sha256};

use crate::error::DataError;
use crate::formats::tokens::{CHECKED_BYTES, Tokens};
use crate::identity::Identity;

/// Files read as one stream: a document may begin in one file and end in the next.
pub(crate) struct Corpus {
    files: Vec<Tokens>,
    /// The position in the stream after the last token of each file.
    ends: Vec<u64>,
    vocab: usize,
}

impl Corpus {
    /// The stream of the given files' tokens.
    ///
    /// # Errors
    /// A token that is not below `vocab`, among those that [`Tokens::check`] looks at.
    pub(crate) fn new(files: Vec<Tokens>, vocab: usize) -> Result<Corpus, UserError> {
        // At least 64 KiB of each file, even if that is more than `CHECKED_BYTES` in all.
        let part = (CHECKED_BYTES / 2 / files.len().max(1)).max(64 << 10);
        files.iter().try_for_each(|file| file.check(part, vocab))?;
        let ends = files.iter().scan(0, |end, file| {
            *end += file.len;
            Some(*end)
        });
        Ok(Corpus { ends: ends.collect(), files, vocab })
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are no tokens.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The identity of the corpus.
    ///
    /// # Errors
    /// A file cannot be read any more.
    fn identity(&self) -> Result<Identity, DataError> {
        let mut hash = Sha256::new();
        self.files.iter().try_for_each(|file| file.identify(&mut hash))?;
        Ok(Identity { tokens: self.len(), sha256: format!("{:x}", hash.finalize()) })
    }

    /// Writes tokens `start..start + row.len()` into `row`. They must exist.
    fn read(&self, mut start: u64, mut row: &mut [i32]) -> Result<(), DataError> {
        let mut file = self.ends.partition_point(|end| *end <= start);
        while !row.is_empty() {
            let (part, rest) = row.split_at_mut(row.len().min((self.ends[file] - start) as usize));
            let tokens = &self.files[file];
            tokens.read(start - (self.ends[file] - tokens.len), part, self.vocab)?;
            start += part.len() as u64;
            row = rest;
            file += 1;
        }
        Ok(())
    }
}

/// Windows `first..first + count` of a corpus. Window `w` is tokens `w seq..=(w + 1) seq`. Neighbours share one token: it is
/// the last target of one window and the first input of the next. So each token except the first is a target once.
#[derive(Clone)]
pub struct Windows {
    corpus: Arc<Corpus>,
    first: u64,
    /// Number of windows.
    pub count: u64,
}

impl Windows {
    /// All windows of `seq + 1` tokens.
    pub(crate) fn all(corpus: Corpus, seq: usize) -> Windows {
        let count = corpus.len().saturating_sub(1) / seq as u64;
        Windows { corpus: Arc::new(corpus), first: 0, count }
    }

    /// The first `share` of the windows, and the rest.
    pub fn split(self, share: f64) -> (Windows, Windows) {
        let count = (self.count as f64 * share).floor() as u64;
        let rest = Windows { first: self.first + count, count: self.count - count, ..self.clone() };
        (Windows { count, ..self }, rest)
    }

    /// The identity of the windows' corpus. `None` for the second part of a [`Windows::split`]: the first part has it.
    ///
    /// # Errors
    /// A file cannot be read any more.
    pub fn identity(&self) -> Result<Option<Identity>, DataError> {
        if self.first == 0 { self.corpus.identity().map(Some) } else { Ok(None) }
    }

    /// Writes the `seq + 1` tokens of a window into `row`.
    ///
    /// # Errors
    /// The corpus changed since it was opened.
    pub fn read(&self, window: u64, row: &mut [i32]) -> Result<(), DataError> {
        self.corpus.read((self.first + window) * (row.len() as u64 - 1), row)
    }
}
