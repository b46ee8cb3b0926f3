//! The order of training samples, and what a run meets again or misses that goes on at its position in another order.

use common::UserError;

use crate::config::DataConfig;
use crate::random::word;
use crate::source::Displaced;
use crate::sources::blend::Blend;
use crate::sources::dataset::Dataset;
use crate::sources::length_order::LengthOrder;
use crate::sources::permutation::permuted;

/// The order of the training samples of some datasets.
pub struct Order {
    /// Gives the dataset of a sample.
    blend: Blend,
    /// Seed of the order within datasets.
    seed: u64,
    /// Samples of a batch have like lengths.
    by_length: Option<LengthOrder>,
}

impl Order {
    pub(crate) fn new(blend: Blend, seed: u64) -> Order {
        Order { blend, seed, by_length: None }
    }

    /// The order that the given settings make. With `grouped`, the samples of batches of so many have like lengths.
    ///
    /// # Errors
    /// Weights that are wrong.
    pub(crate) fn of(data: &DataConfig, grouped: Option<usize>) -> Result<Order, UserError> {
        let datasets = data.path.iter().map(|paths| paths.datasets("data.path")).collect::<Result<Vec<_>, _>>()?;
        let weights: Vec<f64> = datasets.into_iter().flatten().map(|(weight, _)| weight).collect();
        Ok(Order::new(Blend::new(&weights, "data.path")?, data.seed).grouped(grouped))
    }

    /// The same order, but samples of batches of so many have like lengths.
    pub(crate) fn grouped(self, batch: Option<usize>) -> Order {
        Order { by_length: batch.map(LengthOrder::new), ..self }
    }

    /// The dataset of training sample `number`, and the sample there. Each epoch of a dataset is in another order.
    pub(crate) fn sample(&self, datasets: &[Dataset], number: u64) -> (usize, u64) {
        let (dataset, number) = self.blend.at(number);
        (dataset, self.of_dataset(dataset, &datasets[dataset], number))
    }

    /// The sample that is read as number `number` of a dataset's samples.
    fn of_dataset(&self, at: usize, dataset: &Dataset, number: u64) -> u64 {
        let (epoch, place) = (number / dataset.count(), number % dataset.count());
        let key = word(word(self.seed, at as u64), epoch);
        match &self.by_length {
            Some(order) => order.sample(dataset, epoch, place, key),
            None => permuted(place, dataset.count(), key),
        }
    }

    /// The samples before `position` that belong to unfinished passes over datasets.
    pub(crate) fn begun(&self, datasets: &[Dataset], position: u64) -> u64 {
        datasets.iter().enumerate().map(|(at, dataset)| self.blend.before(at, position) % dataset.count()).sum()
    }

    /// What differs up to `position` from the order `before`.
    pub(crate) fn displaced(&self, before: &Order, datasets: &[Dataset], position: u64) -> Displaced {
        let mut all = Displaced::default();
        for (at, dataset) in datasets.iter().enumerate() {
            let count = dataset.count();
            let [was, is] = [before, self].map(|order| order.blend.before(at, position));
            // How often the first order has each sample more often than the second one, beside whole passes.
            let mut more = vec![0i8; count as usize];
            (was - was % count..was).for_each(|number| more[before.of_dataset(at, dataset, number) as usize] += 1);
            (is - is % count..is).for_each(|number| more[self.of_dataset(at, dataset, number) as usize] -= 1);
            let passes = (was / count) as i64 - (is / count) as i64;
            for times in more.into_iter().map(|more| passes + i64::from(more)) {
                all.again += times.max(0) as u64;
                all.left_out += (-times).max(0) as u64;
            }
        }
        all
    }
}
