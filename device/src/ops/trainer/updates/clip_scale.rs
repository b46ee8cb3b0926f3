//! Before the update: the gradient norm over all tensors at once, and the clip factor.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, args, kernel_file};
use crate::ops::{Operation, Status, ensure_elements, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// From the sum of squared gradients to [`Status`]: norm = `sqrt(square_sum) * inverse_loss_scale`, `finite` and
/// `applies`, `grad_factor = min(1, clip / (norm + 1e-6)) * inverse_loss_scale`, and `applied` or `skipped` advanced by one.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipScale {
    /// `(1)`, f32.
    pub square_sum: Tensor,
    /// u8, a [`crate::ops::Control`].
    pub control: Tensor,
    /// u8, a [`Status`], updated.
    pub status: Tensor,
}

impl Operation for ClipScale {
    const NAME: &'static str = "clip_scale";

    fn check(&self) -> Result<()> {
        ensure_values(Self::NAME, "square_sum", &self.square_sum, DType::F32, 1)?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read square_sum, control; update status }

    fn makes_status(&self) -> Option<Tensor> {
        Some(self.status)
    }
}

impl KernelOperation for ClipScale {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/optimizer.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch("clip_scale", Grid::line(1, 1), args! { self.square_sum, self.control, self.status })
    }
}
