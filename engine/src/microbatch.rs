//! The microbatch under way, as layers see it.

use crate::batch_sizes::BatchSizes;
use crate::step_policy::StepContext;

impl BatchSizes {
    /// The sizes of the microbatches of the step under way.
    pub(crate) fn of(cx: &StepContext<'_>) -> BatchSizes {
        cx.policy().sizes(cx.mode().length)
    }
}

/// Whether gradients of parameters are added to those that the step has computed so far. The first microbatch's
/// overwrite what the step before left.
pub(crate) fn adds_to_gradients(cx: &StepContext<'_>) -> bool {
    !cx.is_first_microbatch()
}
