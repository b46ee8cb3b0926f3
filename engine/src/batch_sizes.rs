//! The sizes of a microbatch: what the data decide of the shapes of tensors. Models have none of them.

use device::Shape;
use device::ops::DropoutPart;

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
}

/// A rank's rows of the residual stream: one of equal shares of a microbatch's tokens.
#[derive(Clone, Copy, Debug)]
pub struct RowShare {
    /// The number of this rank's share.
    pub share: usize,
    /// The number of shares; 1: the rank has all rows.
    pub shares: usize,
}

impl RowShare {
    /// The shape of the rank's rows: `(samples, tokens, width)`, or of a share of them `(1, rows, width)`.
    pub(crate) fn shape(self, sizes: BatchSizes, width: usize) -> Shape {
        match self.shares {
            1 => [sizes.samples, sizes.tokens_per_sample, width].into(),
            shares => [1, sizes.tokens() / shares, width].into(),
        }
    }

    /// The rank's rows among the microbatch's, for dropout.
    pub(crate) fn dropout_part(self, sizes: BatchSizes) -> DropoutPart {
        let first_row = self.share * (sizes.tokens() / self.shares);
        DropoutPart { first_row, tokens: sizes.tokens_per_sample, ..DropoutPart::default() }
    }
}
