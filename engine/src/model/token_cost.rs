//! The cost of a token in a part of a model.

use std::iter::Sum;
use std::ops::Add;

/// The cost of a token in a part of a model, on all ranks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCost {
    /// Multiplications by weights, in forward.
    pub(crate) weights: usize,
    /// Multiplications of activations by activations, in forward: attention scores, and values weighted by them.
    pub(crate) scores: usize,
    /// Values read or written, in forward and backward.
    pub(crate) values: usize,
}

impl Add for TokenCost {
    type Output = TokenCost;

    fn add(self, other: TokenCost) -> TokenCost {
        TokenCost {
            weights: self.weights + other.weights,
            scores: self.scores + other.scores,
            values: self.values + other.values,
        }
    }
}

impl Sum for TokenCost {
    fn sum<I: Iterator<Item = TokenCost>>(costs: I) -> TokenCost {
        costs.fold(TokenCost::default(), TokenCost::add)
    }
}

impl TokenCost {
    /// Floating-point operations of a training step: an addition with each multiplication, and in backward twice as
    /// much as in forward.
    pub(crate) fn flops(&self) -> usize {
        6 * (self.weights + self.scores)
    }
}
