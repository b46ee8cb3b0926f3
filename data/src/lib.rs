//! Where samples come from. A sample is a function of its global number, so every parallel layout sees the same data, and
//! a run's place in the data is one number.
//!
//! [`open()`] goes from the `[data]` section to a [`TokenSource`]; [`tokenize()`] makes token files.

mod blend;
mod config;
mod corpus;
mod documents;
mod identity;
mod interrupt;
pub mod llmc;
mod mapped;
mod markov;
mod megatron;
mod missing;
mod open;
mod paths;
mod permutation;
mod prefetch;
mod regression;
mod shards;
mod text_stream;
mod token_source;
mod tokenize;
mod tokenizer;
mod tokens;
mod unused;

use device::Batch;

pub use config::{DataConfig, RawTokens};
pub use identity::{Identities, Identity, changed};
pub use interrupt::go_on;
pub use markov::MarkovSource;
pub use missing::Missing;
pub use open::{JSON_KEY, forms, open};
pub use paths::{PathItem, Paths};
pub use prefetch::{IN_MEMORY, Prefetch};
pub use regression::Regression;
pub use text_stream::TextStream;
pub use token_source::TokenSource;
pub use tokenize::{TokenizeError, TokenizeRequest, tokenize};
pub use tokenizer::Tokenizer;
pub use tokens::TokenType;
pub use unused::refuse_unused;

/// Which stream of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is trained on.
    Train,
    /// What is evaluated on; it shares no sample with training.
    Validation,
}

/// Data that were right at the start, as far as it looked, cannot be read any more or hold what they may not, or data
/// cannot be written: exit code 3.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}. Fix: {fix}")]
pub struct DataError {
    /// What happened, to which file.
    pub what: String,
    /// What to do.
    pub fix: String,
}

/// A source of training samples.
pub trait Source: Send + Sync {
    /// Samples `first..first + count`, for one rank's step.
    ///
    /// # Errors
    /// The data changed, or cannot be read any more.
    fn batch(&self, split: Split, first: u64, count: usize) -> Result<Batch, DataError>;

    /// Whether it has samples to evaluate on.
    fn validates(&self) -> bool {
        true
    }

    /// The lowest mean loss any model can reach, in nats, and how it is known; where it is known at all.
    fn floor(&self) -> Option<f64> {
        None
    }

    /// By what its datasets are known again; none where the configuration says it all.
    ///
    /// # Errors
    /// The data changed, or cannot be read any more.
    fn identities(&self) -> Result<Identities, DataError> {
        Ok(Identities::new())
    }

    /// What it is, for the plan box.
    fn describe(&self) -> String;
}

/// Collects token samples: `fill(number, row)` writes `seq + 1` tokens, of which inputs and targets are made.
fn token_batch(
    first: u64,
    count: usize,
    seq: usize,
    mut fill: impl FnMut(u64, &mut [i32]) -> Result<(), DataError>,
) -> Result<Batch, DataError> {
    let (mut inputs, mut targets) = (Vec::with_capacity(count * seq), Vec::with_capacity(count * seq));
    let mut row = vec![0; seq + 1];
    for number in first..first + count as u64 {
        fill(number, &mut row)?;
        inputs.extend(&row[..seq]);
        targets.extend(&row[1..]);
    }
    Ok(Batch::Tokens { inputs: inputs.into(), targets: targets.into() })
}

/// SplitMix64 (Steele et al., 2014): the `n`-th random word of a seed.
fn word(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The same as a number in [0, 1).
fn uniform(seed: u64, n: u64) -> f64 {
    (word(seed, n) >> 11) as f64 / (1u64 << 53) as f64
}
