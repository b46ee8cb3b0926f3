//! The samples of one dataset, of either kind.

use crate::error::DataError;
use crate::identity::Identity;
use crate::sources::conversations::Conversations;
use crate::sources::corpus::Windows;

/// The samples of a dataset, or of a part of the dataset.
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

    /// Inputs of a sample that are no padding. `None` if samples have none.
    pub(crate) fn length(&self, number: u64) -> Option<usize> {
        match self {
            Dataset::Windows(_) => None,
            Dataset::Conversations(conversations) => conversations.length(number),
        }
    }
}
