//! Steps whose numbers are void, as rows of experts had no room.

use crate::ops::{Operation, Status, ensure_dtype, ensure_elements, tensors};
use crate::{DType, Result, Tensor};

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
        ensure_dtype(Self::NAME, "beyond", &self.beyond, DType::F32)?;
        ensure_elements(Self::NAME, "beyond", &self.beyond, 1)?;
        ensure_elements(Self::NAME, "status", &self.status, size_of::<Status>())
    }

    tensors! { read beyond; update status }

    fn follows_status(&self) -> Option<Tensor> {
        Some(self.status)
    }
}
