//! GELU in its tanh form (Hendrycks and Gimpel, 2016) between the two matrices.

use device::Tensor;
use device::ops::{self, ActivationKind, Epilogue, QuantizeSource};
use graph_manager::Result;

use super::dense::{Activation, ActivationBackward};
use crate::fp8::Operand;
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

    fn forward(
        &self,
        cx: &StepContext<'_>,
        up: &Linear,
        input: &Operand,
        pre: Tensor,
        activated: Tensor,
    ) -> Result<()> {
        match up.bias {
            Some(bias) => up.forward_through(cx, input, activated, Epilogue::BiasGelu { bias: bias.weight, pre }),
            None => {
                up.forward(cx, input, pre)?;
                cx.run(ops::Activation { kind: ActivationKind::Gelu, input: pre, output: activated })
            }
        }
    }

    fn backward(&self, cx: &mut StepContext<'_>, down: &Linear, tensors: ActivationBackward) -> Result<()> {
        let ActivationBackward { grad_output, pre, grad_pre, activated, recompute } = tensors;
        let epilogue = Epilogue::GeluBackward { pre, activated: recompute.then_some(activated) };
        down.dgrad(cx, &grad_output, grad_pre, epilogue)
    }
}
