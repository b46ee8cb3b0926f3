//! Blends of datasets: the dataset of a sample, as a function of the sample's number.

use common::UserError;

/// The pattern repeats after so many samples. Shares are exact to one part in this number.
const PERIOD: usize = 1 << 16;

/// Datasets with weights. Within a period each sample comes from the dataset that is furthest behind its share, as in
/// Megatron's blends. The next period repeats the pattern. Each dataset then continues after its last sample.
pub struct Blend {
    /// For each sample of a period: its dataset, and how many samples before it in the period come from the same dataset.
    pattern: Vec<(u32, u32)>,
    /// For each dataset, the places of the dataset's samples in a period.
    places: Vec<Vec<u32>>,
}

impl Blend {
    /// A blend with one dataset for each weight. Weights need not sum to one. `key` is the option that they come from.
    ///
    /// # Errors
    /// A weight that is not positive, or less than 1 in 65536 of the sum.
    pub fn new(weights: &[f64], key: &str) -> Result<Blend, UserError> {
        let total: f64 = weights.iter().sum();
        for weight in weights {
            let wrong = |rule: &str, fix: &str| Err(UserError::new(format!("{key}: weight {weight}"), rule, fix));
            if !weight.is_finite() || *weight <= 0.0 {
                return wrong("weights are above 0 and finite", "leave out the dataset, or give it a positive weight");
            }
        }
        for weight in weights {
            let wrong = |rule: &str, fix: &str| Err(UserError::new(format!("{key}: weight {weight}"), rule, fix));
            if !total.is_finite() {
                return wrong("the sum of all weights is finite", "give smaller weights");
            }
            if weight / total * (PERIOD as f64) < 1.0 {
                return wrong("a share is at least 1 in 65536", "leave out the dataset, or give it a larger weight");
            }
        }
        if let [_] = weights {
            return Ok(Blend { pattern: vec![(0, 0)], places: vec![vec![0]] });
        }
        // Largest remainders: each dataset gets the integer part of its share. The rest goes to the largest fractions.
        let share = |weight: &f64| weight / total * PERIOD as f64;
        let mut counts: Vec<u64> = weights.iter().map(|weight| share(weight) as u64).collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|&a, &b| share(&weights[b]).fract().total_cmp(&share(&weights[a]).fract()));
        let left = (PERIOD as u64).saturating_sub(counts.iter().sum()) as usize;
        order.iter().take(left).for_each(|&dataset| counts[dataset] += 1);
        let period = counts.iter().sum::<u64>();
        let mut places = vec![Vec::new(); weights.len()];
        let pattern = (0..period)
            .map(|place| {
                let used = |d: usize| places[d].len() as u64;
                let behind = |d: usize| (counts[d] * (place + 1)) as i64 - (used(d) * period) as i64;
                let next = (0..weights.len()).rev().max_by_key(|&d| behind(d)).unwrap_or(0);
                let before = places[next].len() as u32;
                places[next].push(place as u32);
                (next as u32, before)
            })
            .collect();
        Ok(Blend { pattern, places })
    }

    /// The dataset of sample `number`, and how many earlier samples come from the same dataset.
    pub fn at(&self, number: u64) -> (usize, u64) {
        let period = self.pattern.len() as u64;
        let (dataset, before) = self.pattern[(number % period) as usize];
        (dataset as usize, number / period * self.places[dataset as usize].len() as u64 + u64::from(before))
    }

    /// Samples of a dataset among the first `number`.
    pub(crate) fn before(&self, dataset: usize, number: u64) -> u64 {
        let (period, places) = (self.pattern.len() as u64, &self.places[dataset]);
        let of_last = places.partition_point(|place| u64::from(*place) < number % period);
        number / period * places.len() as u64 + of_last as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn shares_are_met_at_all_times_and_each_dataset_is_read_in_order(
            weights in prop::collection::vec(0.01f64..10.0, 2..6)
        ) {
            let blend = Blend::new(&weights, "data.path").unwrap();
            let total: f64 = weights.iter().sum();
            let mut seen = vec![0u64; weights.len()];
            for number in 0..2 * PERIOD as u64 + 100 {
                let (dataset, before) = blend.at(number);
                prop_assert_eq!(before, seen[dataset]);
                prop_assert_eq!(blend.before(dataset, number), before);
                seen[dataset] += 1;
                for (count, weight) in seen.iter().zip(&weights) {
                    let ideal = weight / total * (number + 1) as f64;
                    prop_assert!((*count as f64 - ideal).abs() < weights.len() as f64 + 4.0, "{} of {}", count, ideal);
                }
            }
        }
    }

    #[test]
    fn one_dataset_is_read_in_order() {
        let blend = Blend::new(&[0.3], "data.path").unwrap();
        assert_eq!([0, 1, 99].map(|number| blend.at(number)), [(0, 0), (0, 1), (0, 99)]);
    }

    #[test]
    fn weights_that_give_no_samples_are_refused() {
        assert!(Blend::new(&[0.0], "data.path").is_err());
        for weights in [[1.0, 0.0], [1.0, -1.0], [f64::NAN, 1.0], [1e300, 1e-300], [f64::INFINITY, 1.0]] {
            assert!(Blend::new(&weights, "data.path").is_err(), "{weights:?}");
        }
    }
}
