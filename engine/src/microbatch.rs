//! The microbatch under way, in the layers' view.

use crate::batch_sizes::BatchSizes;
use crate::regions::Region;
use crate::step_policy::StepContext;

impl BatchSizes {
    /// The sizes of the microbatches of the step under way.
    pub(crate) fn of(cx: &StepContext<'_>) -> BatchSizes {
        cx.policy().sizes(cx.mode().length)
    }
}

/// Whether a layer's backward adds to gradients ([`Param::grad`](crate::params::Param::grad)), and does not overwrite
/// gradients. The first microbatch's overwrite what the step before left. If ranks divide gradients, each microbatch's
/// overwrite.
pub fn adds_to_gradients(cx: &StepContext<'_>) -> bool {
    let layer = cx.current_region().and_then(Region::layer_and_microbatch).map(|(layer, _)| layer);
    !cx.is_first_microbatch() && !layer.is_some_and(|layer| cx.policy().divides_gradients(layer))
}
