//! Before the update: the gradient norm over all tensors at once, and the clip factor.

use std::sync::Arc;

use crate::ops::{Operation, Status, ensure_dtype, ensure_elements, ensure_float, tensors};
use crate::{DType, Result, Tensor};

/// `total (+)= sum of x^2` over all tensors, accumulated in f64 in fixed chunks and rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareSum {
    /// f32 or bf16, any shapes.
    pub inputs: Arc<[Tensor]>,
    /// `(1)`, f32.
    pub total: Tensor,
}

impl Operation for SquareSum {
    const NAME: &'static str = "square_sum";

    fn check(&self) -> Result<()> {
        for input in self.inputs.iter() {
            ensure_float(Self::NAME, &[("inputs", *input)])?;
        }
        ensure_dtype(Self::NAME, "total", &self.total, DType::F32)?;
        ensure_elements(Self::NAME, "total", &self.total, 1)
    }

    tensors! { read inputs; write total }
}

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
        ensure_dtype(Self::NAME, "square_sum", &self.square_sum, DType::F32)?;
        ensure_elements(Self::NAME, "square_sum", &self.square_sum, 1)?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read square_sum, control; update status }

    fn makes_status(&self) -> Option<Tensor> {
        Some(self.status)
    }
}
