//! How attention makes scores of products.

use crate::Result;
use crate::ops::{check_cap, ensure};

/// How the score of a key follows from the product of query and key, before the mask. The default is
/// `product / sqrt(head_dim)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// The factor of products; `None` for `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// The bound `cap` of scores; `None` for no bound. A score `s` becomes `cap * tanh(s / cap)` (Gemma Team, 2024).
    pub soft_cap: Option<f32>,
}

impl Scores {
    /// The factor of products, in heads of `dim` channels.
    pub(crate) fn scale(self, dim: usize) -> f32 {
        self.scale.unwrap_or(1.0 / (dim as f32).sqrt())
    }

    /// Fails on numbers that leave no scores.
    pub(crate) fn check(self, op: &'static str) -> Result<()> {
        ensure(op, self.scale.is_none_or(f32::is_finite), || format!("scale {:?} is not finite", self.scale))?;
        check_cap(op, self.soft_cap)
    }
}
