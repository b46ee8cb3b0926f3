//! GELU in the tanh form (Hendrycks and Gimpel, 2016) between the two matrices.

use device::Tensor;
use device::ops::{self, ActivationKind, Epilogue, QuantizeSource};
use graph_manager::Result;

use super::dense::{Activation, ActivationBackward, ActivationForward};
use crate::model::linear::Linear;
use crate::step_policy::StepContext;

pub(super) struct Gelu;

impl Activation for Gelu {
    fn groups(&self) -> usize {
        1
    }

    fn default_width(&self, hidden: usize) -> usize {
        4 * hidden
    }

    fn source(&self, pre: Tensor) -> QuantizeSource {
        QuantizeSource::Activation { kind: ActivationKind::Gelu, input: pre }
    }

    fn backward_source(&self, pre: Tensor, grad_output: Tensor) -> QuantizeSource {
        QuantizeSource::ActivationBackward { kind: ActivationKind::Gelu, input: pre, grad_output }
    }

    fn forward(&self, cx: &mut StepContext<'_>, up: &Linear, tensors: ActivationForward<'_>) -> Result<()> {
        let ActivationForward { input, pre, activated, adapter } = tensors;
        if let Some(bias) = up.bias.filter(|_| !up.has_adapter() && !up.is_8_bit()) {
            return up.forward_through(cx, input, activated, Epilogue::BiasGelu { bias: bias.weight, pre });
        }
        up.product(cx, input, pre, adapter)?;
        cx.run(ops::Activation { kind: ActivationKind::Gelu, input: pre, output: activated })
    }

    fn backward(&self, cx: &mut StepContext<'_>, down: &Linear, tensors: ActivationBackward) -> Result<()> {
        let ActivationBackward { grad_output, pre, grad_pre, activated, recompute, adapter } = tensors;
        let kind = ActivationKind::Gelu;
        if !down.has_adapter() && !down.is_8_bit() {
            let epilogue = Epilogue::GeluBackward { pre, activated: recompute.then_some(activated) };
            return down.dgrad(cx, &grad_output, grad_pre, epilogue, None);
        }
        let grad_activated = down.input_gradient(cx, "grad_activated", grad_output.rows())?;
        down.dgrad(cx, &grad_output, grad_activated, Epilogue::None, adapter)?;
        if recompute {
            cx.run(ops::Activation { kind, input: pre, output: activated })?;
        }
        cx.run(ops::ActivationBackward { kind, input: pre, grad_output: grad_activated, grad_input: grad_pre })
    }
}
