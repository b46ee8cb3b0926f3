//! Shapes and buffers with the rows of another tensor.

use device::{Shape, Tensor};
use graph_manager::Result;

use crate::step_policy::StepContext;

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
