//! How many samples a step takes: the same in each, or more and more while a run begins.

use common::UserError;

use crate::config::TrainConfig;

/// The global batch of every step, a function of the samples consumed before it, so that it needs no state of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSize {
    /// In the end.
    global: usize,
    /// Samples of one microbatch on all data-parallel ranks: what every size is a multiple of.
    unit: usize,
    ramp: Option<Ramp>,
}

/// From `start` to the global batch by `increment` at a time, each size for as many samples as the others, `samples` in
/// all; as Megatron's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ramp {
    start: usize,
    increment: usize,
    samples: u64,
}

impl BatchSize {
    /// As configured, for so many data-parallel ranks.
    ///
    /// # Errors
    /// Sizes that microbatches do not divide, or that do not lead to the global batch.
    pub fn new(train: &TrainConfig, ranks: usize) -> Result<BatchSize, UserError> {
        let (global, micro) = (train.global_batch_size, train.micro_batch_size);
        let unit = micro * ranks;
        if !global.is_multiple_of(unit) {
            let (below, above) = (global / unit * unit, global.next_multiple_of(unit));
            let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            return Err(UserError::new(
                format!("train.global_batch_size = {global} with micro_batch_size = {micro} on {ranks} ranks"),
                format!("the global batch is a multiple of micro_batch_size x data-parallel ranks = {unit}"),
                format!("set train.global_batch_size = {near}, or another micro_batch_size"),
            ));
        }
        let ramp = match train.rampup_batch_size[..] {
            [] => None,
            [start, increment, samples] => Some(Ramp { start, increment, samples: samples as u64 }),
            _ => {
                return Err(wrong(train, "it is a size to start from, an increment and a number of samples".into()));
            }
        };
        if let Some(Ramp { start, increment, samples }) = ramp {
            if start == 0 || increment == 0 || samples == 0 {
                return Err(wrong(train, "its numbers are above 0".into()));
            }
            if !start.is_multiple_of(unit) || !increment.is_multiple_of(unit) {
                let rule = format!("sizes are multiples of micro_batch_size x data-parallel ranks = {unit}");
                return Err(wrong(train, rule));
            }
            if start > global || !(global - start).is_multiple_of(increment) {
                let rule = format!("increments lead from the first size to train.global_batch_size = {global}");
                return Err(wrong(train, rule));
            }
        }
        Ok(BatchSize { global, unit, ramp })
    }

    /// Samples of the step that comes after so many samples.
    pub fn after(&self, consumed: u64) -> usize {
        match &self.ramp {
            Some(Ramp { start, increment, samples }) if consumed < *samples => {
                let increments = (self.global - start) / increment;
                start + increment * (u128::from(consumed) * increments as u128 / u128::from(*samples)) as usize
            }
            _ => self.global,
        }
    }

    /// Microbatches of that step on each rank.
    pub fn microbatches_after(&self, consumed: u64) -> usize {
        self.after(consumed) / self.unit
    }

    /// Every number of microbatches that a run can meet, the largest first.
    pub fn microbatches(&self) -> Vec<usize> {
        let (start, increment) = self.ramp.as_ref().map_or((self.global, self.global), |r| (r.start, r.increment));
        (start..=self.global).rev().step_by(increment).map(|size| size / self.unit).collect()
    }

    /// Samples of the first `steps` steps of a run.
    pub fn samples_of(&self, steps: usize) -> u64 {
        let mut consumed = 0;
        for done in 0..steps {
            if self.after(consumed) == self.global {
                return consumed + (steps - done) as u64 * self.global as u64;
            }
            consumed += self.after(consumed) as u64;
        }
        consumed
    }

    /// How it begins, if not with the global batch.
    pub fn ramp_in_words(&self) -> Option<String> {
        let Ramp { start, increment, samples } = self.ramp.as_ref()?;
        Some(format!("begins with {start}, {increment} more at a time over {samples} samples"))
    }
}

fn wrong(train: &TrainConfig, rule: String) -> UserError {
    UserError::new(
        format!("train.rampup_batch_size = {:?}", train.rampup_batch_size),
        rule,
        "set three such numbers as in [16, 16, 100000], or none for the same batch in every step",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(ramp: [usize; 3], global: usize) -> BatchSize {
        let [start, increment, samples] = ramp;
        let ramp = Some(Ramp { start, increment, samples: samples as u64 });
        BatchSize { global, unit: 4, ramp }
    }

    #[test]
    fn a_ramp_has_each_size_for_as_many_samples_and_then_the_global_batch() {
        let sizes = ramp([4, 4, 60], 16);
        // Three increments of 20 samples each.
        let after = [0, 19, 20, 39, 40, 59, 60, 1 << 40].map(|consumed| sizes.after(consumed));
        assert_eq!(after, [4, 4, 8, 8, 12, 12, 16, 16]);
        assert_eq!(sizes.microbatches(), [4, 3, 2, 1]);
    }

    #[test]
    fn the_samples_of_a_run_are_the_sum_of_its_steps() {
        let sizes = ramp([8, 4, 100], 32);
        let mut consumed = 0;
        for steps in 0..40 {
            assert_eq!(sizes.samples_of(steps), consumed);
            consumed += sizes.after(consumed) as u64;
        }
    }
}
