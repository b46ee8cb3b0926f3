//! The tokens that count: all but padding.

use crate::Tensor;
use crate::host::view;
use crate::ops::SampleTokens;

/// The tokens that each whole sample begins with and that count; all if there is no padding.
pub(crate) struct Counted<'r> {
    real: Option<&'r [i32]>,
    of: SampleTokens,
    /// Tokens here.
    tokens: usize,
}

impl Counted<'_> {
    pub(crate) fn new(real: Option<&Tensor>, of: SampleTokens, tokens: usize) -> Counted<'static> {
        Counted { real: real.map(view::read::<i32>), of, tokens }
    }

    /// Whether a token counts.
    pub(crate) fn counts(&self, token: usize) -> bool {
        self.real.is_none_or(|real| {
            let place = self.of.place(token, self.tokens);
            (place.position as i32) < real[place.sample]
        })
    }

    /// The number of tokens of whole samples that count.
    pub(crate) fn of_samples(&self) -> f32 {
        self.real.map_or((self.tokens * self.of.share.ranks) as f32, |real| real.iter().sum::<i32>() as f32)
    }

    /// The number of the first token of a token's document, among those of whole samples.
    pub(crate) fn first_of_document(&self, positions: &[i32], token: usize) -> usize {
        self.of.number(token, self.tokens).saturating_sub(positions[token] as usize)
    }

    /// The sample of a token.
    pub(crate) fn sample(&self, token: usize) -> usize {
        self.of.place(token, self.tokens).sample
    }
}
