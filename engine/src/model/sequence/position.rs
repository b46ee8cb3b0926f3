//! How a model knows the order of tokens, and the table of rotary position embedding (Su et al., 2021).

use std::f64::consts::TAU;
use std::rc::Rc;

use device::ops::{Mask, SequenceShare};
use device::{Area, DType, Device, Tensor};

/// How a model knows the order of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Position {
    /// A learned vector for each position, added to the embeddings.
    Learned {
        /// Rows of the table: at least the tokens of a sequence, which take the first.
        positions: usize,
    },
    /// Rotation of queries and keys by position.
    Rotary {
        /// See [`RotaryTable::base`].
        base: f64,
        /// See [`RotaryTable::scaling`].
        scaling: Option<Scaling>,
        /// The base in blocks with a window. Their frequencies are then not scaled. `None` if they are as in the
        /// others.
        window_base: Option<f64>,
    },
    /// Only the causal mask (Kazemnejad et al., 2023).
    None,
}

impl Position {
    /// Rows of the table of learned positions; `None` if positions are not learned.
    pub fn learned(self) -> Option<usize> {
        match self {
            Position::Learned { positions } => Some(positions),
            Position::Rotary { .. } | Position::None => None,
        }
    }
}

/// Rotary tables, or a value for each table.
#[derive(Clone, Copy, Debug)]
pub struct RotaryTables<T> {
    /// The table of all blocks, or of blocks without a window; `None` if positions are not rotary.
    pub full: Option<T>,
    /// The table of blocks with a window, if such blocks have a separate table.
    pub window: Option<T>,
}

impl<T> RotaryTables<T> {
    /// No tables.
    pub const NONE: RotaryTables<T> = RotaryTables { full: None, window: None };

    /// The table of a block with this mask.
    pub fn of(&self, mask: Mask) -> Option<&T> {
        self.window.as_ref().filter(|_| mask.window.is_some()).or(self.full.as_ref())
    }

    /// The results of `make` for each table.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn try_map<U, E>(&self, mut make: impl FnMut(&T) -> Result<U, E>) -> Result<RotaryTables<U>, E> {
        let full = self.full.as_ref().map(&mut make).transpose()?;
        Ok(RotaryTables { full, window: self.window.as_ref().map(make).transpose()? })
    }
}

impl RotaryTables<RotaryTable> {
    /// The tables in memory that is added to `areas`: `(rows, head_dim / 2, 2)`, f32. The rows are all positions, or those of
    /// the tokens here.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn uploaded(
        &self,
        device: &Device,
        areas: &mut Vec<Area>,
        here: &TokensHere,
    ) -> device::Result<RotaryTables<Tensor>> {
        self.try_map(|table| -> device::Result<Tensor> {
            let rows = here.positions().unwrap_or_else(|| (0..table.positions).collect());
            let shape = [rows.len(), table.head_dim / 2, 2];
            let tensor = device.allocate_tensor(areas, "rotary_table", shape, DType::F32)?;
            if !device.is_dry() {
                device.upload(&tensor, &table.values(rows.into_iter()))?;
            }
            Ok(tensor)
        })
    }
}

/// The tokens of a sample that a rank has, for each length of samples. Tables by position have a row for each of them.
#[derive(Clone, Debug)]
pub struct TokensHere {
    share: SequenceShare,
    /// For each length: the number of tokens here.
    lengths: Rc<[usize]>,
}

impl TokensHere {
    /// All tokens.
    pub(crate) fn all() -> TokensHere {
        TokensHere { share: SequenceShare::WHOLE, lengths: Rc::new([]) }
    }

    /// A share of samples of `lengths`.
    pub(crate) fn new(share: SequenceShare, lengths: impl IntoIterator<Item = usize>) -> TokensHere {
        TokensHere { share, lengths: lengths.into_iter().map(|length| length / share.ranks).collect() }
    }

    /// The positions of the tokens here, of one length after the other. `None` if all are here.
    pub(crate) fn positions(&self) -> Option<Vec<usize>> {
        let of_length = |&tokens: &usize| (0..tokens).map(move |token| self.share.position(token, tokens));
        (self.share != SequenceShare::WHOLE).then(|| self.lengths.iter().flat_map(of_length).collect())
    }

    /// The positions in the shape of a table of tokens: `(samples, tokens)` for each length. `None` if all tokens are
    /// here.
    pub(crate) fn values(&self, samples: usize) -> Option<Vec<i32>> {
        let positions = self.positions()?;
        let mut values = Vec::with_capacity(samples * positions.len());
        for &tokens in self.lengths.iter() {
            let row = &positions[self.first_row(tokens)..][..tokens];
            values.extend((0..samples).flat_map(|_| row).map(|position| *position as i32));
        }
        Some(values)
    }

    /// The first row of a table by position, for samples of which so many tokens are here.
    pub(crate) fn first_row(&self, tokens: usize) -> usize {
        match self.share {
            SequenceShare::WHOLE => 0,
            _ => self.lengths.iter().take_while(|length| **length != tokens).sum(),
        }
    }
}

/// Cosines and sines of all positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    /// The table's rows.
    pub positions: usize,
    /// Channels of a head; even.
    pub head_dim: usize,
    /// Channel pair `i` is rotated by the angle `position / base^(2 i / head_dim)`.
    pub base: f64,
    /// Lowers frequencies for longer contexts.
    pub scaling: Option<Scaling>,
}

/// How frequencies are lowered for contexts longer than the one that a model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Llama 3.1 and later. Pairs with a wavelength that is long compared with the original context have a `factor`
    /// times lower frequency; short ones keep theirs; those between are interpolated.
    Llama3 {
        /// How much lower the frequency of long wavelengths is.
        factor: f64,
        /// Wavelengths above `original_context / low` are scaled in full.
        low: f64,
        /// Wavelengths below `original_context / high` are not scaled.
        high: f64,
        /// Positions that the model was first trained on.
        original_context: f64,
    },
    /// YaRN (Peng et al., 2023). Between the pairs that make `beta_fast` and `beta_slow` turns over the original
    /// context, the frequency goes from the pair's own to a `factor` times lower one, linear in the number of the pair.
    Yarn {
        /// How much lower the frequency of slow pairs is.
        factor: f64,
        /// Positions that the model was first trained on.
        original_context: f64,
        /// Pairs with more turns are not scaled.
        beta_fast: f64,
        /// Pairs with fewer turns are scaled in full.
        beta_slow: f64,
        /// The factor of cosines and sines.
        attention_factor: f64,
        /// The first and the last pair between are whole numbers.
        rounds: bool,
    },
    /// All frequencies are lowered alike.
    Linear {
        /// The factor by which frequencies are lowered.
        factor: f64,
    },
}

impl Scaling {
    /// The frequency of a channel pair, from the unscaled one of base `base`.
    fn apply(&self, frequency: f64, pair: usize, base: f64, head_dim: usize) -> f64 {
        let interpolate = |unscaled: f64, factor: f64| frequency * (unscaled + (1.0 - unscaled) / factor);
        match *self {
            Scaling::Llama3 { factor, low, high, original_context } => {
                // Turns over the original context: at most `low` means a long wavelength, at least `high` a short one.
                let turns = original_context * frequency / TAU;
                interpolate(((turns - low) / (high - low)).clamp(0.0, 1.0), factor)
            }
            Scaling::Yarn { factor, original_context, beta_fast, beta_slow, rounds, .. } => {
                // The pair that makes so many turns over the original context.
                let pair_of =
                    |turns: f64| head_dim as f64 * (original_context / (turns * TAU)).ln() / (2.0 * base.ln());
                let (first, last) = (pair_of(beta_fast), pair_of(beta_slow));
                let (first, last) = if rounds { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min((head_dim - 1) as f64));
                // As `transformers`: with equal ends the ramp is steep.
                let width = if first == last { 0.001 } else { last - first };
                interpolate(1.0 - ((pair as f64 - first) / width).clamp(0.0, 1.0), factor)
            }
            Scaling::Linear { factor } => frequency / factor,
        }
    }

    /// The factor of cosines and sines.
    fn attention_factor(&self) -> f64 {
        match *self {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            Scaling::Llama3 { .. } | Scaling::Linear { .. } => 1.0,
        }
    }
}

impl RotaryTable {
    /// `(positions, head_dim / 2, 2)`: cosine and sine of each of these positions and channel pair; computed in f64.
    pub fn values(&self, positions: impl Iterator<Item = usize>) -> Vec<f32> {
        let frequency = |pair: usize| {
            let plain = self.base.powf(-((2 * pair) as f64) / self.head_dim as f64);
            self.scaling.map_or(plain, |scaling| scaling.apply(plain, pair, self.base, self.head_dim))
        };
        let factor = self.scaling.map_or(1.0, |scaling| scaling.attention_factor());
        let frequencies: Vec<f64> = (0..self.head_dim / 2).map(frequency).collect();
        let mut values = Vec::new();
        for position in positions {
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                values.extend([(factor * cos) as f32, (factor * sin) as f32]);
            }
        }
        values
    }
}
