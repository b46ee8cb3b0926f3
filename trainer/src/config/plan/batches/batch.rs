//! The samples of every step: the same number in each, or a growing number while a run begins.

use common::UserError;
use common::format::counted;

use crate::config::TrainConfig;
use crate::config::checks::at_least;

/// The samples of every step. Their number is a function of the samples consumed before the step, so a resumed run needs no
/// further state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Samples of a step over all ranks, once the ramp has ended.
    pub global: usize,
    /// Samples of a microbatch.
    pub micro: usize,
    /// The number of data-parallel ranks. They divide each step's samples.
    data_ranks: usize,
    ramp: Option<Ramp>,
}

/// Megatron's batch-size ramp: from `start` to the global batch in steps of `increment`. Each size is used for the same
/// number of samples, `samples` in all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ramp {
    start: usize,
    increment: usize,
    samples: u64,
}

/// The part of a step's samples that one data-parallel rank takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShare {
    /// Global number of the rank's first sample.
    pub first_sample: u64,
    /// Samples of the rank.
    pub samples: usize,
    /// The rank's microbatches.
    pub microbatches: usize,
}

impl BatchPlan {
    /// The plan of a configuration for `data_ranks` data-parallel ranks.
    ///
    /// # Errors
    /// A batch size of 0, sizes that are no multiples of a microbatch, a ramp that does not lead to the global batch.
    pub fn new(train: &TrainConfig, data_ranks: usize) -> Result<BatchPlan, UserError> {
        at_least("train.micro_batch_size", train.micro_batch_size, 1)?;
        at_least("train.global_batch_size", train.global_batch_size, 1)?;
        let (global, micro) = (train.global_batch_size, train.micro_batch_size);
        let samples_at_once = micro * data_ranks;
        if !global.is_multiple_of(samples_at_once) {
            let (below, above) = (global / samples_at_once * samples_at_once, global.next_multiple_of(samples_at_once));
            let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            return Err(UserError::new(
                format!(
                    "train.global_batch_size = {global} with micro_batch_size = {micro} on {}",
                    counted(data_ranks, "rank")
                ),
                format!("the global batch is a multiple of micro_batch_size x data-parallel ranks = {samples_at_once}"),
                format!("set train.global_batch_size = {near}, or another micro_batch_size"),
            ));
        }
        let ramp = match train.rampup_batch_size[..] {
            [] => None,
            [start, increment, samples] => Some(Ramp { start, increment, samples: samples as u64 }),
            _ => {
                let rule = "the ramp is a size to start from, an increment and a number of samples";
                return Err(wrong_ramp(train, rule.into()));
            }
        };
        if let Some(Ramp { start, increment, samples }) = ramp {
            if start == 0 || increment == 0 || samples == 0 {
                return Err(wrong_ramp(train, "the ramp's numbers are above 0".into()));
            }
            if !start.is_multiple_of(samples_at_once) || !increment.is_multiple_of(samples_at_once) {
                let rule = format!("sizes are multiples of micro_batch_size x data-parallel ranks = {samples_at_once}");
                return Err(wrong_ramp(train, rule));
            }
            if start > global || !(global - start).is_multiple_of(increment) {
                let rule = format!("increments lead from the first size to train.global_batch_size = {global}");
                return Err(wrong_ramp(train, rule));
            }
        }
        Ok(BatchPlan { global, micro, data_ranks, ramp })
    }

    /// Microbatches of a rank in a step of the global batch.
    pub fn microbatches(&self) -> usize {
        self.microbatches_of(self.global)
    }

    /// Samples, over all ranks, of the step that follows `consumed` samples.
    pub fn samples_after(&self, consumed: u64) -> usize {
        match &self.ramp {
            Some(Ramp { start, increment, samples }) if consumed < *samples => {
                let increments = (self.global - start) / increment;
                start + increment * (u128::from(consumed) * increments as u128 / u128::from(*samples)) as usize
            }
            _ => self.global,
        }
    }

    /// The share of data-parallel rank `data_rank` in the step that follows `consumed` samples.
    pub fn share_after(&self, consumed: u64, data_rank: usize) -> BatchShare {
        self.share(consumed, self.samples_after(consumed), data_rank)
    }

    /// The same for a step of the global batch.
    pub fn share_of_global(&self, consumed: u64, data_rank: usize) -> BatchShare {
        self.share(consumed, self.global, data_rank)
    }

    fn share(&self, consumed: u64, samples: usize, data_rank: usize) -> BatchShare {
        let own = samples / self.data_ranks;
        BatchShare {
            first_sample: consumed + (data_rank * own) as u64,
            samples: own,
            microbatches: self.microbatches_of(samples),
        }
    }

    fn microbatches_of(&self, samples: usize) -> usize {
        samples / (self.micro * self.data_ranks)
    }

    /// Every number of microbatches that a step of the run can have, the largest first.
    pub fn microbatch_counts(&self) -> Vec<usize> {
        let (start, increment) = self.ramp.as_ref().map_or((self.global, self.global), |r| (r.start, r.increment));
        (start..=self.global).rev().step_by(increment).map(|samples| self.microbatches_of(samples)).collect()
    }

    /// Samples of the first `steps` steps of a run.
    pub fn samples_of(&self, steps: usize) -> u64 {
        let mut consumed = 0;
        for done in 0..steps {
            if self.samples_after(consumed) == self.global {
                return consumed + (steps - done) as u64 * self.global as u64;
            }
            consumed += self.samples_after(consumed) as u64;
        }
        consumed
    }

    /// The steps until a run has consumed at least so many samples.
    pub fn steps_for(&self, samples: u64) -> usize {
        let (mut consumed, mut steps) = (0, 0);
        while consumed < samples {
            let size = self.samples_after(consumed);
            if size == self.global {
                return steps + (samples - consumed).div_ceil(size as u64) as usize;
            }
            consumed += size as u64;
            steps += 1;
        }
        steps
    }

    /// The ramp in words, if there is one.
    pub fn describe_ramp(&self) -> Option<String> {
        let Ramp { start, increment, samples } = self.ramp.as_ref()?;
        Some(format!("grows from {start} by {increment} at a time over {samples} samples"))
    }
}

fn wrong_ramp(train: &TrainConfig, rule: String) -> UserError {
    UserError::new(
        format!("train.rampup_batch_size = {:?}", train.rampup_batch_size),
        rule,
        "set three such numbers as in [16, 16, 100000], or [] for the same batch in every step",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan of two data-parallel ranks with microbatches of 2 samples.
    fn ramp(ramp: [usize; 3], global: usize) -> BatchPlan {
        let [start, increment, samples] = ramp;
        let ramp = Some(Ramp { start, increment, samples: samples as u64 });
        BatchPlan { global, micro: 2, data_ranks: 2, ramp }
    }

    #[test]
    fn a_ramp_uses_each_size_for_as_many_samples_and_then_the_global_batch() {
        let batch = ramp([4, 4, 60], 16);
        // Three increments of 20 samples each.
        let after = [0, 19, 20, 39, 40, 59, 60, 1 << 40].map(|consumed| batch.samples_after(consumed));
        assert_eq!(after, [4, 4, 8, 8, 12, 12, 16, 16]);
        assert_eq!(batch.microbatch_counts(), [4, 3, 2, 1]);
    }

    #[test]
    fn the_samples_of_a_run_are_the_sum_of_its_steps() {
        let batch = ramp([8, 4, 100], 32);
        let mut consumed = 0;
        for steps in 0..40 {
            assert_eq!(batch.samples_of(steps), consumed);
            consumed += batch.samples_after(consumed) as u64;
        }
    }

    #[test]
    fn the_steps_for_some_samples_are_the_fewest_that_have_as_many() {
        for batch in [ramp([8, 4, 100], 32), BatchPlan { global: 12, micro: 2, data_ranks: 2, ramp: None }] {
            for samples in 0..400 {
                let steps = batch.steps_for(samples);
                assert!(batch.samples_of(steps) >= samples);
                assert!(steps == 0 || batch.samples_of(steps - 1) < samples, "{samples}: {steps}");
            }
        }
    }

    #[test]
    fn the_ranks_shares_are_the_steps_samples_end_to_end() {
        let batch = ramp([8, 4, 100], 32);
        for consumed in [0, 8, 50, 200] {
            let mut next = consumed;
            for data_rank in 0..2 {
                let share = batch.share_after(consumed, data_rank);
                assert_eq!((share.first_sample, share.samples), (next, 2 * share.microbatches));
                next += share.samples as u64;
            }
            assert_eq!(next, consumed + batch.samples_after(consumed) as u64);
        }
    }
}
