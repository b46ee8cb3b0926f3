//! What the manager knows of a model.

use device::Tensor;

use crate::{Result, StepContext};

/// What passes from region to region: a few named tensors.
pub trait Flow: Clone + 'static {
    /// The same flow with each tensor replaced by what `f` makes of its name and itself.
    ///
    /// # Errors
    /// The first that `f` returns.
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl Flow for () {
    fn map(&self, _: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<()> {
        Ok(())
    }
}

impl Flow for Tensor {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f("tensor", *self)
    }
}

impl<F: Flow> Flow for Option<F> {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Option<F>> {
        self.as_ref().map(|flow| flow.map(f)).transpose()
    }
}

/// A layer: an explicit forward and an explicit backward, nothing else.
///
/// Both submit operations to `cx` and take their buffers from it. What backward needs, forward hands over with
/// [`StepContext::keep`]. Gradients of weights alone backward hands to [`StepContext::defer`]. Activations flow forward as
/// `F`, gradients backward as one tensor.
pub trait Layer<F: Flow> {
    /// Computes the output from the input.
    ///
    /// # Errors
    /// What the device refused.
    fn forward(&self, cx: &mut StepContext<'_>, input: F) -> Result<F>;

    /// Computes the input's gradient from the output's, and the parameters' `main_grad`.
    ///
    /// # Errors
    /// What the device refused.
    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor) -> Result<Tensor>;
}
