//! What a source of training samples is.

use std::ops::Range;

use device::{Element, HostArray, HostValues, Staging};

use crate::error::DataError;
use crate::identity::Identities;
use crate::text::chat_template::ChatTemplate;
use crate::text::copied_file::CopiedFile;
use crate::text::tokenizer_copy::TokenizerCopy;

/// Which stream of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Samples to train on.
    Train,
    /// Samples to evaluate on. Training never sees them.
    Validation,
}

/// A source of training samples. A sample is a function of the split and of its global number.
pub trait Source: Send + Sync {
    /// Reads samples `first..first + count` into an array of `staging`.
    ///
    /// The array is `(count, width)`, a row for each sample. For language models a row is `seq + 1` token ids: the inputs
    /// are all but the last, the targets all but the first. For conversations it is `seq` inputs, then `seq` targets, which
    /// are -1 where there is no loss; where several are packed into a sample, the position of each token in its conversation
    /// follows. For a regression it is the features, then the outputs.
    ///
    /// # Errors
    /// The data changed since they were opened, or cannot be read any more.
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError>;

    /// The number of targets of samples `first..first + count`. `None` where all targets of all samples count.
    ///
    /// # Errors
    /// There are no such samples.
    fn targets(&self, _split: Split, _first: u64, _count: usize) -> Result<Option<u64>, DataError> {
        Ok(None)
    }

    /// Whether it has samples to evaluate on.
    fn validates(&self) -> bool {
        true
    }

    /// The lowest mean loss that any model can reach, in nats. `None` where it is not known.
    fn floor(&self) -> Option<f64> {
        None
    }

    /// What the user should know about the files that were read, a line each.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// The tokenizer that made the tokens, where it is known.
    fn tokenizer(&self) -> Option<&TokenizerCopy> {
        None
    }

    /// The template that made text of its conversations.
    fn chat_template(&self) -> Option<&ChatTemplate> {
        None
    }

    /// The files that say what its tokens mean, names and contents: copies of its tokenizer and its chat template.
    fn copies(&self) -> Vec<(CopiedFile, Vec<u8>)> {
        let tokenizer = self.tokenizer().map_or(Vec::new(), TokenizerCopy::files);
        let template = self.chat_template().map_or(Vec::new(), ChatTemplate::files);
        tokenizer.into_iter().chain(template).collect()
    }

    /// What identifies its datasets. Empty where the configuration alone decides the samples.
    ///
    /// # Errors
    /// The data changed since they were opened, or cannot be read any more.
    fn identities(&self) -> Result<Identities, DataError> {
        Ok(Identities::new())
    }

    /// What it is, for the plan box.
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
