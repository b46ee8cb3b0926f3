//! The forwards that a step on pairs of answers may begin with. They have a list and graphs of their own, before those of
//! the training step or evaluation.
//!
//! - [`Mode::Reference`] computes the pairs under the model without its adapters, whose log-probabilities the loss
//!   compares with.
//! - [`Mode::Mismatched`] computes the rewards of prompts with the answers of others. KTO estimates from them how far the
//!   model has moved.

use device::Tensor;
use device::ops::{Copy, PairLoss};
use graph_manager::Result;

use super::Stage;
use super::settings::StepSettings;
use crate::model::{References, SampleRow};
use crate::regions::Mode;
use crate::step_policy::StepContext;

/// The forwards that a step begins with, and the memory of the forwards' results.
#[derive(Clone, Copy)]
pub(super) struct FirstForwards {
    pub(super) mode: Mode,
    /// `(microbatches, results of a microbatch's pairs)`, f32, on the stage with the head.
    pub(super) results: Option<Tensor>,
    /// `(1)`, f32, for [`Mode::Mismatched`]: the sum of the rewards over all ranks.
    pub(super) rewards: Option<Tensor>,
}

impl FirstForwards {
    /// The mode of the forwards that each step on such samples begins with.
    pub(super) fn mode_for(row: &SampleRow) -> Option<Mode> {
        let in_step = row.pairs.as_ref().is_some_and(|pairs| pairs.references == References::WithoutAdapters);
        let mismatched = row.mismatched.map(|_| Mode::Mismatched);
        mismatched.or(in_step.then_some(Mode::Reference))
    }

    /// Keeps the sum of the rewards, of the sums of a pair's results.
    pub(super) fn keep_rewards(&self, cx: &StepContext<'_>, of_pairs: Tensor) -> Result<()> {
        let Some(output) = self.rewards.filter(|_| cx.mode().mode == Mode::Mismatched) else { return Ok(()) };
        // The chosen answer is the one that is there. The step's own sums take the place of these.
        let [of_chosen, _] = PairLoss::REWARDS;
        cx.run(Copy { input: of_pairs.view(of_chosen, [1]), output })
    }
}

impl Stage {
    /// Runs the forwards that the step with `settings` begins with, if there are some. Its inputs are
    /// written.
    pub(super) fn run_first_forwards(&mut self, settings: StepSettings) -> Result<()> {
        let Some(FirstForwards { mode, .. }) = self.program.first else { return Ok(()) };
        let kind = self.program.kind(mode, settings.length)?;
        self.graphs.step(kind, settings.microbatches, &mut |cx| self.program.evaluate(cx))
    }

    /// The mode of the forwards that each step and evaluation begins with; `None` if there are no such forwards.
    pub fn first_forwards(&self) -> Option<Mode> {
        self.program.first.map(|first| first.mode)
    }
}
