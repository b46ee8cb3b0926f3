//! Steps that make no update because their loss or gradient norm is a spike.

use crate::ops::{Operation, Status, ensure, ensure_dtype, ensure_elements, tensors};
use crate::{DType, Result, Tensor};

/// Skips the update of a spike: a step with a loss or gradient norm more than `sigma_factor` standard deviations above
/// the mean of the last `interval` steps. It comes after [`crate::ops::ClipScale`], and before the update.
///
/// The loss is `loss_sum * grad_scale`. For a spike `status.applies` becomes 0, `applied` is taken back, and `spikes`
/// is advanced. Every step with a finite loss and norm enters the history, spikes among them, so a loss that stays high
/// is no spike for long. Until half of the interval is known, and at least two steps, there are no spikes. Mean and
/// deviation (of a sample, so with one degree of freedom less) are of the steps before this one, in f64, summed from
/// the oldest step to the newest.
#[derive(Clone, Debug, PartialEq)]
pub struct SkipStep {
    /// `(1)`, f32: the sum of the losses of all ranks.
    pub loss_sum: Tensor,
    /// `(2, interval)`, f32: losses, then norms, of the last steps. Step i that entered, counted from 0, is in column i mod
    /// interval; `status.recorded` is their number.
    pub history: Tensor,
    /// A value is a spike if it lies more than this many standard deviations above the mean.
    pub sigma_factor: f32,
    /// u8, a [`crate::ops::Control`].
    pub control: Tensor,
    /// u8, a [`Status`], updated.
    pub status: Tensor,
}

impl SkipStep {
    /// Steps that the history holds.
    pub fn interval(&self) -> usize {
        self.history.shape.last()
    }

    /// So many steps are known before the first that is skipped.
    pub fn least(&self) -> usize {
        (self.interval() / 2).max(2)
    }
}

impl Operation for SkipStep {
    const NAME: &'static str = "skip_step";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "loss_sum", &self.loss_sum, DType::F32)?;
        ensure_elements(Self::NAME, "loss_sum", &self.loss_sum, 1)?;
        ensure_dtype(Self::NAME, "history", &self.history, DType::F32)?;
        ensure_elements(Self::NAME, "history", &self.history, 2 * self.interval())?;
        ensure(Self::NAME, self.interval() >= 2, || "a deviation needs two steps, and `history` holds fewer".into())?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read loss_sum; update history; read control; update status }
}
