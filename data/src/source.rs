//! The trait of a source of training samples.

use std::iter::Sum;
use std::ops::Range;

use common::UserError;
use device::{Element, HostArray, HostValues, Staging};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::identity::Identities;
use crate::sources::conversations::Conversations;
use crate::text::conversation::ChatTemplate;
use crate::text::copied_file::CopiedFile;
use crate::text::tokenizer::TokenizerCopy;

/// One of the two streams of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Samples to train on.
    Train,
    /// Samples to evaluate on. Training never sees them.
    Validation,
}

/// A pass over all samples to train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Samples of a pass.
    pub samples: u64,
    /// The conversations of a pass, if the samples are conversations.
    pub conversations: Option<u64>,
}

/// Counts of some samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// Targets that have a loss.
    pub targets: u64,
    /// Inputs that are no padding.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
}

impl Sum for SampleCounts {
    fn sum<I: Iterator<Item = SampleCounts>>(all: I) -> SampleCounts {
        all.fold(SampleCounts::default(), |sum, one| SampleCounts {
            targets: sum.targets + one.targets,
            tokens: sum.tokens + one.tokens,
            documents: sum.documents + one.documents,
        })
    }
}

/// Readings of samples that differ between two orders, up to the same position in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Displaced {
    /// Samples that the first order has more often. A run that goes on in the second reads them again.
    pub again: u64,
    /// Samples that the second order has more often. A run that goes on in it leaves them out.
    pub left_out: u64,
}

/// A source of training samples. A sample is a function of the split and of its global number.
pub trait Source: Send + Sync {
    /// Reads samples `first..first + count` into an array of `staging`.
    ///
    /// The array is `(count, width)`, a row for each sample:
    /// - For a language model a row is `seq + 1` token ids. The inputs are all but the last, the targets all but the
    ///   first.
    /// - If documents in them are told apart, a row is `seq` inputs, then `seq` targets, of which those without loss are
    ///   -1. If attention or positions begin anew with each, the position of each token in its document comes after.
    /// - For conversations a row is `seq` inputs, then `seq` targets. A target without loss is -1. If several
    ///   conversations are packed into a sample, the position of each token in its conversation comes after. For pairs of
    ///   answers see [`Conversations::width`].
    /// - For a regression a row is the features, then the outputs.
    ///
    /// A row beyond the last sample to evaluate on has no target with a loss.
    ///
    /// # Errors
    /// The data changed since they were opened, or cannot be read any more.
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError>;

    /// The counts of samples `first..first + count`, of samples to evaluate on as far as there are so many. `None` if all
    /// targets of all samples count, nothing is padding, and each sample is one document.
    ///
    /// # Errors
    /// Samples that are not there, or data that cannot be read any more.
    fn counts(&self, _split: Split, _first: u64, _count: usize) -> Result<Option<SampleCounts>, DataError> {
        Ok(None)
    }

    /// The most inputs that are no padding in one of samples `first..first + count`. `None` if samples have no padding.
    /// It follows from the order of the data alone, so all ranks get the same.
    ///
    /// # Errors
    /// There are no such samples.
    fn longest(&self, _split: Split, _first: u64, _count: usize) -> Result<Option<usize>, DataError> {
        Ok(None)
    }

    /// Whether the source has samples to evaluate on.
    fn validates(&self) -> bool {
        true
    }

    /// The number of samples to evaluate on. Each is there once. `None` if they have no end.
    fn validation_samples(&self) -> Option<u64> {
        None
    }

    /// A pass over the samples to train on. `None` if they have no end, or are missing.
    fn epoch(&self) -> Option<Epoch> {
        None
    }

    /// The samples before training sample `position` that belong to passes that are not done. 0 if samples have no end.
    fn begun(&self, _position: u64) -> u64 {
        0
    }

    /// What a run meets again and leaves out that goes on at training sample `position`, if it had the same samples in the
    /// order of the settings `before`, with batches of `grouped` samples of like length. `None` if samples have no end.
    ///
    /// # Errors
    /// Settings that give no order.
    fn displaced(
        &self,
        _before: &DataConfig,
        _grouped: Option<usize>,
        _position: u64,
    ) -> Result<Option<Displaced>, UserError> {
        Ok(None)
    }

    /// The lowest mean loss that any model can reach, in nats. `None` if it is not known.
    fn floor(&self) -> Option<f64> {
        None
    }

    /// Notices for the user about the files that were read, a line each.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// The tokenizer that made the tokens, if known.
    fn tokenizer(&self) -> Option<&TokenizerCopy> {
        None
    }

    /// The template that made text of the source's conversations.
    fn chat_template(&self) -> Option<&ChatTemplate> {
        None
    }

    /// Copies of the source's tokenizer and chat template, as files with contents: they give tokens their meaning.
    fn copies(&self) -> Vec<(CopiedFile, Vec<u8>)> {
        let tokenizer = self.tokenizer().map_or(Vec::new(), TokenizerCopy::files);
        let template = self.chat_template().map_or(Vec::new(), ChatTemplate::files);
        tokenizer.into_iter().chain(template).collect()
    }

    /// The identities of the source's datasets. Empty if the configuration alone decides the samples.
    ///
    /// # Errors
    /// The data changed since they were opened, or cannot be read any more.
    fn identities(&self) -> Result<Identities, DataError> {
        Ok(Identities::new())
    }

    /// The parts of the source that have pairs of answers: those to train on, then those to evaluate on.
    fn parts_with_pairs(&self) -> Vec<&Conversations> {
        Vec::new()
    }

    /// A description of the source for the plan box.
    fn describe(&self) -> String;
}

/// An array of `staging` with a row of `width` values for each sample: `fill(number, row)` writes the row of a sample.
pub(crate) fn rows<T: Element>(
    samples: Range<u64>,
    width: usize,
    staging: &Staging,
    mut fill: impl FnMut(u64, &mut [T]) -> Result<(), DataError>,
) -> Result<HostArray<T>, DataError> {
    let count = (samples.end - samples.start) as usize;
    staging.array(count * width, |values| {
        samples.zip(values.chunks_mut(width)).try_for_each(|(number, row)| fill(number, row))
    })
}
