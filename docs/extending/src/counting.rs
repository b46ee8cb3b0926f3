//! Samples that count: each token is the one before plus one.

use std::sync::Arc;

use common::UserError;
use data::{DataError, Source, Split};
use device::{HostArray, HostValues, Staging};
use trainer::config::RunConfig;

/// The source of a run.
pub fn source(config: &RunConfig) -> Result<Arc<dyn Source>, UserError> {
    Ok(Arc::new(Counting { tokens: config.model.seq_length + 1, vocab: config.model.vocab }))
}

struct Counting {
    /// Tokens of a sample: inputs, and the target of the last.
    tokens: usize,
    vocab: usize,
}

impl Source for Counting {
    fn batch(&self, _: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        let samples: HostArray<i32> = staging.array(count * self.tokens, |values| {
            for (number, sample) in values.chunks_mut(self.tokens).enumerate() {
                let start = (first as usize + number) * 7;
                sample.iter_mut().enumerate().for_each(|(at, token)| *token = ((start + at) % self.vocab) as i32);
            }
            Ok::<(), DataError>(())
        })?;
        Ok(HostValues::I32(samples))
    }

    fn describe(&self) -> String {
        "numbers that count".into()
    }
}
