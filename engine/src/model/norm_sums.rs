//! Gradients of norms' weights. A backward leaves them in parts.

use device::ops::{AddPartialColumns, PartialColumns};
use graph_manager::Result;

use crate::microbatch::adds_to_gradients;
use crate::step_policy::StepContext;

/// The parts of parameter gradients, of all norms of a block. One operation adds them up.
#[must_use]
#[derive(Default)]
pub(crate) struct NormSums(Vec<PartialColumns>);

impl NormSums {
    pub(super) fn push(&mut self, sum: PartialColumns) {
        self.0.push(sum);
    }

    /// Adds them up, if any are left. It is the end of the region that left the parts.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn add_up(self, cx: &StepContext<'_>) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        cx.run(AddPartialColumns { sums: self.0.into(), accumulate: adds_to_gradients(cx) })
    }
}
