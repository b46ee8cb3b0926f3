//! The sizes of a microbatch: what the data decide of the shapes of tensors. Models have none of them.

use device::Shape;
use device::ops::{DropoutPart, SequenceShare};
use parallel::{Axis, Place, Ranks};

/// The sizes of a microbatch on this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSizes {
    /// Samples.
    pub samples: usize,
    /// Tokens of each sample that are on this rank; 1 if a sample is features and outputs.
    pub tokens_per_sample: usize,
}

impl BatchSizes {
    /// Tokens of all samples. Each has a target.
    pub fn tokens(self) -> usize {
        self.samples * self.tokens_per_sample
    }

    /// The shape of a rank's rows of the residual stream, one of equal shares: `(samples, tokens, width)`, or of several
    /// `(1, rows, width)`.
    pub(crate) fn rows(self, share: Place, width: usize) -> Shape {
        match share.count {
            1 => [self.samples, self.tokens_per_sample, width].into(),
            shares => [1, self.tokens() / shares, width].into(),
        }
    }

    /// A rank's rows of the residual stream among the microbatch's, for dropout.
    pub(crate) fn dropout_part(self, share: Place) -> DropoutPart {
        let first_row = share.index * (self.tokens() / share.count);
        DropoutPart { first_row, tokens: self.tokens_per_sample, ..DropoutPart::default() }
    }
}

/// The tokens of a sample that this rank has.
pub(crate) fn sequence_share(ranks: &Ranks) -> SequenceShare {
    let Place { index: rank, count: ranks } = ranks.at(Axis::Context);
    SequenceShare { rank, ranks }
}
