//! A gated linear unit between the matrices (Shazeer, 2020): the first matrix packs the rows of the gate, then those of
//! the gated values.

use device::Tensor;
use device::ops::{self, Epilogue, Gate, GluBackward, QuantizeSource};
use graph_manager::Result;

use super::dense::{Activation, ActivationBackward, ActivationForward};
use crate::model::linear::Linear;
use crate::step_policy::StepContext;

/// With a function of the gate.
pub(super) struct Glu(pub(super) Gate);

impl Activation for Glu {
    fn groups(&self) -> usize {
        2
    }

    /// Llama's rule (Touvron et al., 2023): as many parameters as `4 * hidden` would have with two matrices.
    fn default_width(&self, hidden: usize) -> usize {
        (8 * hidden / 3).next_multiple_of(256)
    }

    fn source(&self, pre: Tensor) -> QuantizeSource {
        QuantizeSource::Glu { gate: self.0, input: pre }
    }

    fn backward_source(&self, pre: Tensor, grad_output: Tensor) -> QuantizeSource {
        QuantizeSource::GluBackward { gate: self.0, input: pre, grad_output }
    }

    fn forward(&self, cx: &mut StepContext<'_>, up: &Linear, tensors: ActivationForward<'_>) -> Result<()> {
        let ActivationForward { input, pre, activated, adapter } = tensors;
        up.product(cx, input, pre, adapter)?;
        cx.run(ops::Glu { gate: self.0, input: pre, output: activated })
    }

    fn backward(&self, cx: &mut StepContext<'_>, down: &Linear, tensors: ActivationBackward) -> Result<()> {
        let ActivationBackward { grad_output, pre, grad_pre, activated, recompute, adapter } = tensors;
        let grad_activated = down.input_gradient(cx, "grad_activated", grad_output.rows())?;
        down.dgrad(cx, &grad_output, grad_activated, Epilogue::None, adapter)?;
        let output = recompute.then_some(activated);
        let gate = self.0;
        cx.run(GluBackward { gate, input: pre, grad_output: grad_activated, grad_input: grad_pre, output })
    }
}
