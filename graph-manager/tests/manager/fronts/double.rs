//! A layer that doubles.

use device::ops::Add;
use device::{DType, Tensor};
use graph_manager::{Layer, Policy, Result, StepContext};

/// `y = 2 x`. It saves nothing.
pub struct Double;

impl<P: Policy> Layer<P> for Double {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: x, output: y })?;
        Ok((y, ()))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        Ok(Layer::<P>::forward(self, cx, grad)?.0)
    }
}
