//! Random rows with targets from a fixed random linear map of a few features: something an MLP can learn.

use device::Batch;

use super::{DataError, Source, Split, uniform, word};

/// A regression problem.
pub struct Regression {
    seed: u64,
    features: usize,
    outputs: usize,
}

impl Regression {
    /// The problem of that seed and those widths.
    pub fn new(seed: u64, features: usize, outputs: usize) -> Regression {
        Regression { seed, features, outputs }
    }
}

/// Features a target depends on.
const TERMS: u64 = 4;

impl Source for Regression {
    fn batch(&self, split: Split, first: u64, count: usize) -> Result<Batch, DataError> {
        let odd = u64::from(split == Split::Validation);
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for number in first..first + count as u64 {
            let seed = word(self.seed, 2 * number + odd);
            let row: Vec<f32> = (0..self.features).map(|i| (2.0 * uniform(seed, i as u64) - 1.0) as f32).collect();
            for output in 0..self.outputs as u64 {
                let term = |t: u64| row[word(self.seed ^ 0x7265_6772, output * TERMS + t) as usize % self.features];
                targets.push((0..TERMS).map(term).sum::<f32>());
            }
            inputs.extend(row);
        }
        Ok(Batch::Rows { inputs: inputs.into(), targets: targets.into() })
    }

    fn describe(&self) -> String {
        format!("embedded regression of {} outputs on {} features", self.outputs, self.features)
    }
}
