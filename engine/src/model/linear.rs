//! A linear layer: a product with a weight, and what backward makes of it; whole here, or shared with other ranks.

use device::Tensor;
use device::ops::{BiasGrad, Epilogue, Gemm};
use graph_manager::Result;

use super::tensor_parallel::{Coming, Share};
use crate::params::Param;
use crate::step_policy::StepContext;

/// A linear layer's parameters, or this rank's part of them: weight `(out, in)` and, where there is one, bias `(out)`.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
}

impl Linear {
    /// Width of its output.
    pub(crate) fn width(&self) -> usize {
        self.weight.weight.shape.rows()
    }

    /// Width of its input.
    pub(crate) fn input_width(&self) -> usize {
        self.weight.weight.shape.last()
    }

    pub(crate) fn forward(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor) -> Result<()> {
        self.product(cx, input, output, self.bias)
    }

    fn product(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor, bias: Option<Param>) -> Result<()> {
        let epilogue = bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight));
        cx.run(Gemm::linear(input, self.weight.weight, output, epilogue))
    }

    /// Of a layer cut by its inputs: the sum of all ranks' products, in the rows that are here. One rank adds the bias.
    pub(crate) fn forward_shared(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        [all, here]: [&'static str; 2],
        share: &Share,
    ) -> Result<Tensor> {
        let output = rows_of(cx, all, &input, self.width())?;
        self.product(cx, input, output, share.parallel.once(self.bias))?;
        share.parallel.sum(cx, here, output)
    }

    /// Of a layer cut by its outputs: its input, whose rows were on their way, and the input's gradient, whose sum over
    /// ranks is on its way to the rows that are here.
    pub(crate) fn backward_input_shared(
        &self,
        cx: &mut StepContext<'_>,
        input: Coming,
        grad_output: Tensor,
        [all, here]: [&'static str; 2],
        share: &Share,
    ) -> Result<(Tensor, Coming)> {
        let grad_input = share.tensor(cx, all, self.input_width(), grad_output.dtype)?;
        self.backward_input(cx, grad_output, grad_input, Epilogue::None)?;
        // Before the next transfer starts, for which it would wait too.
        let input = input.join(cx)?;
        Ok((input, share.parallel.sum_beside(cx, here, grad_input)?))
    }

    /// Parameter gradients, and the input's if it is wanted, through an epilogue.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
        grad_input: Option<(Tensor, Epilogue)>,
    ) -> Result<()> {
        if let Some((grad_input, epilogue)) = grad_input {
            self.backward_input(cx, grad_output, grad_input, epilogue)?;
        }
        self.backward_parameters(cx, input, grad_output)
    }

    /// The input's gradient, through an epilogue.
    pub(crate) fn backward_input(
        &self,
        cx: &StepContext<'_>,
        grad_output: Tensor,
        grad_input: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        cx.run(Gemm::dgrad(grad_output, self.weight.weight, grad_input, epilogue))
    }

    /// The parameters' gradients. They may be put off: nothing in the layer may write to what they are made from.
    pub(crate) fn backward_parameters(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
    ) -> Result<()> {
        let accumulate = !cx.variant().overwrites;
        cx.defer(Gemm::wgrad(grad_output, input, self.weight.grad, accumulate))?;
        match self.bias {
            Some(bias) => cx.defer(BiasGrad { grad_output, grad_bias: bias.grad, accumulate }),
            None => Ok(()),
        }
    }

    /// The parameters' gradients, to be computed beside a transfer that comes next; at once if none does, so that what they
    /// are made from need not be kept.
    pub(crate) fn backward_parameters_beside(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
        transfer: bool,
    ) -> Result<PendingGrads> {
        if transfer {
            return Ok(PendingGrads(Some((*self, input, grad_output))));
        }
        self.backward_parameters(cx, input, grad_output)?;
        Ok(PendingGrads(None))
    }
}

/// Gradients of a linear layer's parameters that wait for a transfer to be computed beside; nothing if they are computed.
#[must_use]
pub(crate) struct PendingGrads(Option<(Linear, Tensor, Tensor)>);

impl PendingGrads {
    pub(crate) fn compute(self, cx: &mut StepContext<'_>) -> Result<()> {
        let Some((linear, input, grad_output)) = self.0 else { return Ok(()) };
        linear.backward_parameters(cx, input, grad_output)
    }
}

/// A tensor with the rows of another, `(batch, seq, width)`.
pub(super) fn rows_of(cx: &mut StepContext<'_>, name: &'static str, like: &Tensor, width: usize) -> Result<Tensor> {
    let [batch, seq, _] = like.shape.sizes()[..] else { unreachable!("hidden states are (batch, seq, width)") };
    cx.tensor(name, [batch, seq, width], like.dtype)
}
