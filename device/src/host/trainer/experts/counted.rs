//! The tokens that count: all but padding.

use crate::Tensor;
use crate::host::view;

/// The tokens that each sequence begins with and that count; all if there is no padding.
pub(super) struct Counted<'r> {
    real: Option<&'r [i32]>,
    tokens: usize,
}

impl Counted<'_> {
    pub(super) fn new(real: Option<&Tensor>, tokens: usize) -> Counted<'static> {
        Counted { real: real.map(view::read::<i32>), tokens }
    }

    /// Whether a token counts.
    pub(super) fn counts(&self, token: usize) -> bool {
        self.real.is_none_or(|real| {
            let length = self.tokens / real.len();
            ((token % length) as i32) < real[token / length]
        })
    }

    /// Real tokens of a token's group, for groups that are sequences, or all tokens.
    pub(super) fn of_group(&self, token: usize, groups: usize) -> f32 {
        let size = self.tokens / groups;
        match self.real {
            None => size as f32,
            Some(real) if groups == 1 => real.iter().sum::<i32>() as f32,
            Some(real) => real[token / size] as f32,
        }
    }
}

/// The first token of a token's document.
pub(super) fn first_token(positions: &[i32], token: usize) -> usize {
    token.saturating_sub(positions[token] as usize)
}
