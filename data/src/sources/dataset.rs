//! The samples of one dataset, of either kind.

use std::ops::Range;

use crate::error::DataError;
use crate::identity::Identity;
use crate::sources::conversations::Conversations;
use crate::sources::corpus::Windows;

/// The samples of a dataset, or of a part of it.
pub enum Dataset {
    /// Windows of running text: every token after the first of a window is a target.
    Windows(Windows),
    /// Conversations: only the answers are targets.
    Conversations(Conversations),
}

impl Dataset {
    /// Number of samples.
    pub fn count(&self) -> u64 {
        match self {
            Dataset::Windows(windows) => windows.count,
            Dataset::Conversations(conversations) => conversations.count(),
        }
    }

    /// Number of conversations. `None` for running text.
    pub(crate) fn conversations(&self) -> Option<u64> {
        match self {
            Dataset::Windows(_) => None,
            Dataset::Conversations(conversations) => Some(conversations.conversations()),
        }
    }

    /// The first `share` of the samples, and the rest.
    pub(crate) fn split(self, share: f64) -> (Dataset, Dataset) {
        match self {
            Dataset::Windows(windows) => {
                let (first, rest) = windows.split(share);
                (Dataset::Windows(first), Dataset::Windows(rest))
            }
            Dataset::Conversations(conversations) => {
                let (first, rest) = conversations.split(share);
                (Dataset::Conversations(first), Dataset::Conversations(rest))
            }
        }
    }

    /// The identity of the dataset. `None` for the second part of a [`Dataset::split`]: the first part has it.
    ///
    /// # Errors
    /// A file cannot be read any more.
    pub fn identity(&self) -> Result<Option<Identity>, DataError> {
        match self {
            Dataset::Windows(windows) => windows.identity(),
            Dataset::Conversations(conversations) => Ok(conversations.identity()),
        }
    }

    /// Values of a row of `seq` inputs: `seq + 1` tokens, or [`Conversations::width`].
    pub(crate) fn width(&self, seq: usize) -> usize {
        match self {
            Dataset::Windows(_) => seq + 1,
            Dataset::Conversations(conversations) => conversations.width(),
        }
    }

    /// The number of targets in a range of samples of `seq` inputs.
    pub(crate) fn targets(&self, range: Range<u64>, seq: usize) -> u64 {
        match self {
            Dataset::Windows(_) => (range.end - range.start) * seq as u64,
            Dataset::Conversations(conversations) => conversations.targets(range),
        }
    }

    /// Inputs of a sample that are no padding. `None` if samples have none.
    pub(crate) fn length(&self, number: u64) -> Option<usize> {
        match self {
            Dataset::Windows(_) => None,
            Dataset::Conversations(conversations) => conversations.length(number),
        }
    }

    /// Writes a row without targets that have a loss.
    pub(crate) fn clear(&self, row: &mut [i32]) {
        match self {
            Dataset::Windows(_) => row.fill(-1),
            Dataset::Conversations(conversations) => conversations.clear(row),
        }
    }

    /// Writes a sample into `row`, of [`Dataset::width`] values.
    ///
    /// # Errors
    /// The data changed since they were opened.
    pub(crate) fn read(&self, number: u64, row: &mut [i32]) -> Result<(), DataError> {
        match self {
            Dataset::Windows(windows) => windows.read(number, row),
            Dataset::Conversations(conversations) => {
                conversations.read(number, row);
                Ok(())
            }
        }
    }
}
