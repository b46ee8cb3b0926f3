//! A regression that an MLP can learn: random features, and targets that are fixed sums of a few features.

use device::{HostValues, Staging};

use crate::error::DataError;
use crate::random::{uniform, word};
use crate::source::{Source, Split, rows};

/// A regression problem.
pub struct Regression {
    seed: u64,
    features: usize,
    outputs: usize,
}

impl Regression {
    /// The problem of that seed with so many features and outputs.
    pub fn new(seed: u64, features: usize, outputs: usize) -> Regression {
        Regression { seed, features, outputs }
    }
}

/// Features in the sum of a target.
const TERMS: u64 = 4;

impl Source for Regression {
    fn batch(&self, split: Split, first: u64, count: usize, staging: &Staging) -> Result<HostValues, DataError> {
        // Training takes even streams, validation odd ones.
        let odd = u64::from(split == Split::Validation);
        let width = self.features + self.outputs;
        let values = rows(first..first + count as u64, width, staging, |number, row: &mut [f32]| {
            let seed = word(self.seed, 2 * number + odd);
            let (features, targets) = row.split_at_mut(self.features);
            for (i, feature) in features.iter_mut().enumerate() {
                *feature = (2.0 * uniform(seed, i as u64) - 1.0) as f32;
            }
            for (output, target) in (0u64..).zip(targets) {
                let term =
                    |t: u64| features[word(self.seed ^ 0x7265_6772, output * TERMS + t) as usize % self.features];
                *target = (0..TERMS).map(term).sum();
            }
            Ok(())
        });
        values.map(HostValues::F32)
    }

    fn describe(&self) -> String {
        format!("embedded regression of {} outputs on {} features", self.outputs, self.features)
    }
}
