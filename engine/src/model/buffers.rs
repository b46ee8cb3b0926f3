//! Shapes and buffers with the rows of a microbatch, or of another tensor.

use device::{DType, Shape, Tensor};
use graph_manager::Result;

use crate::batch_sizes::BatchSizes;
use crate::step_policy::StepContext;

/// A buffer with all rows of the microbatch, `(samples, tokens, width)`.
pub(crate) fn all_rows(cx: &mut StepContext<'_>, name: &'static str, width: usize, dtype: DType) -> Result<Tensor> {
    let BatchSizes { samples, tokens_per_sample } = BatchSizes::of(cx);
    cx.tensor(name, [samples, tokens_per_sample, width], dtype)
}

/// The shape `(..., width)` of a tensor `(..., _)`.
pub(super) fn with_width(like: &Tensor, width: usize) -> Shape {
    let mut sizes = like.shape.sizes().to_vec();
    sizes.pop();
    sizes.push(width);
    Shape::new(&sizes)
}

/// A buffer `(..., width)` with the rows and the type of `like` `(..., _)`.
pub(crate) fn tensor_like(cx: &mut StepContext<'_>, name: &'static str, like: &Tensor, width: usize) -> Result<Tensor> {
    cx.tensor(name, with_width(like, width), like.dtype)
}
