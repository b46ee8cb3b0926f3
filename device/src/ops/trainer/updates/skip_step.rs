//! Steps that make no update because their loss or gradient norm is a spike.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, args, fill, kernel_file, kernel_struct};
use crate::ops::{Operation, Status, ensure, ensure_elements, ensure_values, tensors};
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
        ensure_values(Self::NAME, "loss_sum", &self.loss_sum, DType::F32, 1)?;
        ensure_values(Self::NAME, "history", &self.history, DType::F32, 2 * self.interval())?;
        ensure(Self::NAME, self.interval() >= 2, || "a deviation needs two steps, and `history` holds fewer".into())?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read loss_sum; update history; read control; update status }
}

/// Takes a step back if `beyond` is above 0: nothing is updated, and no counter keeps the step. It follows
/// [`crate::ops::ClipScale`], which the recorder of a step checks, and comes before [`crate::ops::SkipStep`]. The step is run
/// again with more room.
#[derive(Clone, Debug, PartialEq)]
pub struct VoidStep {
    /// `(1)`, f32: the rows of all ranks that had no room.
    pub beyond: Tensor,
    /// u8, a [`Status`], updated.
    pub status: Tensor,
}

impl Operation for VoidStep {
    const NAME: &'static str = "void_step";

    fn check(&self) -> Result<()> {
        ensure_values(Self::NAME, "beyond", &self.beyond, DType::F32, 1)?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read beyond; update status }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }
}

kernel_struct! {
    /// The struct of the same name in `kernels/updates/skip_step.cu`.
    SkipStepArgs {
        u64: loss_sum, history, control, status;
        f32: sigma_factor;
        u32: interval, least, padding;
    }
}

impl KernelOperation for SkipStep {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/skip_step.cu")];

    /// A warp is enough.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = fill! {
            SkipStepArgs: self.{loss_sum, history, control, status, sigma_factor}; interval: self.interval(),
            least: self.least(), padding: 0u32
        };
        queue.launch_block("skip_step", Grid::line(1, 32), &block)
    }
}

impl KernelOperation for VoidStep {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/skip_step.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch("void_step", Grid::line(1, 1), args! { self.beyond, self.status })
    }
}
