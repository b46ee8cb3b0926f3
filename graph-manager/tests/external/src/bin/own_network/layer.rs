//! The network's layer.

use graph_manager::device::ops::{Epilogue, Gemm};
use graph_manager::device::{DType, Tensor};
use graph_manager::{Result, StepContext, TrainingPolicy};

use crate::squared_relu::{SquaredRelu, SquaredReluBackward};

/// `relu(input @ weight^T)^2`, with `weight` and `grad` of `(out, in)`.
pub struct Layer {
    pub weight: Tensor,
    pub grad: Tensor,
}

/// Values that a forward leaves for its backward.
#[derive(Clone, Copy)]
pub struct Saved {
    input: Tensor,
    product: Tensor,
}

impl Layer {
    /// `(batch, in)` to `(batch, out)`, and the values that backward needs.
    pub fn forward(&self, cx: &mut StepContext<'_, TrainingPolicy>, input: Tensor) -> Result<(Tensor, Saved)> {
        let shape = [input.shape.rows(), self.weight.shape.rows()];
        let product = cx.tensor("product", shape, DType::F32)?;
        let output = cx.tensor("output", shape, DType::F32)?;
        cx.run(Gemm::linear(input, self.weight, product, Epilogue::None))?;
        cx.run(SquaredRelu { input: product, output })?;
        Ok((output, Saved { input, product }))
    }

    /// The output's gradient, `(batch, out)`, to the input's, `(batch, in)`.
    pub fn backward(
        &self,
        cx: &mut StepContext<'_, TrainingPolicy>,
        Saved { input, product }: Saved,
        grad_output: Tensor,
    ) -> Result<Tensor> {
        let grad_product = cx.tensor("grad_product", product.shape, DType::F32)?;
        let grad_input = cx.tensor("grad_input", input.shape, DType::F32)?;
        cx.run(SquaredReluBackward { input: product, grad_output, grad_input: grad_product })?;
        cx.run(Gemm::wgrad(grad_product, input, self.grad, true))?;
        cx.run(Gemm::dgrad(grad_product, self.weight, grad_input, Epilogue::None))?;
        Ok(grad_input)
    }
}
