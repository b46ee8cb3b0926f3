//! How a model knows the order of its tokens, and the table of rotary position embedding (Su et al., 2021).

use std::f64::consts::TAU;

use device::Shape;

/// How a model knows the order of its tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// A learned vector for each position, added to the embeddings.
    Learned,
    /// Queries and keys are rotated by their position.
    Rotary {
        /// See [`RotaryTable::base`].
        base: f64,
        /// See [`RotaryTable::scaling`].
        scaling: Option<Scaling>,
    },
    /// Only the causal mask (Kazemnejad et al., 2023).
    None,
}

/// Cosines and sines of all positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    /// Positions.
    pub seq: usize,
    /// Channels of a head; even.
    pub head_dim: usize,
    /// Channel pair `i` is rotated by the angle `position / base^(2 i / head_dim)`.
    pub base: f64,
    /// Lowers frequencies for longer contexts.
    pub scaling: Option<Scaling>,
}

/// The frequency scaling of Llama 3.1 and later ("llama3" in `transformers`). Pairs whose wavelength is long compared with
/// the original context have a `factor` times lower frequency; short ones keep theirs; those between are interpolated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// How much lower the frequency of long wavelengths is.
    pub factor: f64,
    /// Wavelengths above `original_context / low` are scaled in full.
    pub low: f64,
    /// Wavelengths below `original_context / high` are not scaled.
    pub high: f64,
    /// Positions that the model was first trained on.
    pub original_context: f64,
}

impl Scaling {
    fn apply(&self, frequency: f64) -> f64 {
        let turns = self.original_context * frequency / TAU;
        // Turns over the original context: at most `low` means a long wavelength, at least `high` a short one.
        let unscaled = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        frequency * (unscaled + (1.0 - unscaled) / self.factor)
    }
}

impl RotaryTable {
    /// `(seq, head_dim / 2, 2)`.
    pub fn shape(&self) -> Shape {
        [self.seq, self.head_dim / 2, 2].into()
    }

    /// Cosine and sine of each position and channel pair, in the order of [`RotaryTable::shape`]; computed in f64.
    pub fn values(&self) -> Vec<f32> {
        let frequency = |pair: usize| {
            let plain = self.base.powf(-((2 * pair) as f64) / self.head_dim as f64);
            self.scaling.map_or(plain, |scaling| scaling.apply(plain))
        };
        let frequencies: Vec<f64> = (0..self.head_dim / 2).map(frequency).collect();
        let mut values = Vec::with_capacity(self.shape().elements());
        for position in 0..self.seq {
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                values.extend([cos as f32, sin as f32]);
            }
        }
        values
    }
}
