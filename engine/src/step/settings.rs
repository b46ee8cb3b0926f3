//! The settings of one step, given by the host.

use device::ops::Control;

use crate::batch_sizes::BatchSizes;

/// The settings of one step, given by the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// The step, counted from 0.
    pub step: u32,
    /// Microbatches of this step on this rank.
    pub microbatches: usize,
    /// Global number of this rank's first sample.
    pub first_sample: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Largest gradient norm; 0 = no clipping.
    pub clip: f32,
    /// The number of losses of the global batch, over all ranks: of its targets, or of its pairs of answers. `None` if all
    /// targets have one.
    pub targets: Option<u64>,
    /// Tokens of the global batch that are no padding: losses of routers are means over them. `None`: all.
    pub tokens: Option<u64>,
    /// Documents of the global batch. `None`: each sample is one.
    pub documents: Option<u64>,
    /// The samples have no more tokens than this: one of the
    /// [shorter lengths](crate::step::StageOptions::shorter_lengths), the same on all ranks. What comes after them in a
    /// row is not read. `None`: the whole length.
    pub length: Option<usize>,
}

/// The form of the batch of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct GlobalBatch {
    /// Ranks with other samples.
    pub(super) ranks: usize,
    /// The sizes of a microbatch, of which ranks may divide the samples.
    pub(super) microbatch: BatchSizes,
}

impl Default for StepSettings {
    /// The first step, of one microbatch, without an update of the weights. All tokens have a loss.
    fn default() -> Self {
        Self {
            step: 0,
            microbatches: 1,
            first_sample: 0,
            learning_rate: 0.0,
            clip: 0.0,
            targets: None,
            tokens: None,
            documents: None,
            length: None,
        }
    }
}

impl StepSettings {
    /// The number of losses whose mean is the loss of the step.
    pub(super) fn losses(&self, batch: GlobalBatch) -> usize {
        self.targets.map_or(batch.ranks * self.microbatches * batch.microbatch.tokens(), |targets| targets as usize)
    }

    /// The control block of a step with this batch.
    pub(super) fn control(&self, batch: GlobalBatch) -> Control {
        let microbatches = self.microbatches * batch.ranks;
        let counted = |count: Option<u64>, of_one: usize| count.map_or((of_one * microbatches) as u32, |n| n as u32);
        Control {
            first_sample: self.first_sample,
            step: self.step,
            microbatches: microbatches as u32,
            tokens: counted(self.tokens, batch.microbatch.tokens()),
            documents: counted(self.documents, batch.microbatch.samples),
            learning_rate: self.learning_rate,
            clip: self.clip,
            grad_scale: (1.0 / self.losses(batch) as f64) as f32,
            inverse_loss_scale: 1.0,
        }
    }
}
