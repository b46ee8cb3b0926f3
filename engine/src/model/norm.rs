//! A norm of the residual stream, which first adds what is to be added to it.

use device::ops::{Norm, NormBackward, NormKind};
use device::{DType, Tensor};
use graph_manager::Result;

use crate::params::Param;
use crate::step_policy::StepContext;

/// A LayerNorm's or RMSNorm's parameters, `(hidden)` each; an RMSNorm has no bias.
#[derive(Clone, Copy)]
pub(crate) struct NormLayer {
    pub(crate) kind: NormKind,
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
    pub(crate) eps: f32,
    /// Backward computes the normed values again instead of keeping them.
    pub(crate) recompute: bool,
}

/// What a norm keeps for its backward: its input `(batch, seq, hidden)`, statistics `(batch * seq)`, and its output
/// unless that is computed again.
#[derive(Clone, Copy)]
pub(crate) struct SavedNorm {
    input: Tensor,
    /// LayerNorm only.
    mean: Option<Tensor>,
    rstd: Tensor,
    output: Option<Tensor>,
}

impl NormLayer {
    /// Adds what is to be added to the residual stream and normalises it: the new stream, the normed values, and what
    /// backward needs.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
    ) -> Result<(Tensor, Tensor, SavedNorm)> {
        let shape = x.shape;
        let normed = cx.tensor("normed", shape, x.dtype)?;
        let mean = match self.kind {
            NormKind::Layer => Some(cx.tensor("mean", [shape.rows()], DType::F32)?),
            NormKind::Rms => None,
        };
        let rstd = cx.tensor("rstd", [shape.rows()], DType::F32)?;
        let sum = match delta {
            Some(_) => Some(cx.tensor("residual", shape, x.dtype)?),
            None => None,
        };
        cx.run(Norm {
            kind: self.kind,
            input: delta.unwrap_or(x),
            residual: delta.map(|_| x),
            sum,
            weight: self.weight.weight,
            bias: self.bias.map(|bias| bias.weight),
            output: normed,
            mean,
            rstd,
            eps: self.eps,
        })?;
        let x = sum.unwrap_or(x);
        let output = (!self.recompute).then_some(normed);
        Ok((x, normed, SavedNorm { input: x, mean, rstd, output }))
    }

    /// The normed values, kept or computed again to the same bits.
    pub(crate) fn output(&self, cx: &mut StepContext<'_>, saved: &SavedNorm) -> Result<Tensor> {
        if let Some(output) = saved.output {
            return Ok(output);
        }
        self.forward(cx, saved.input, None).map(|(_, normed, _)| normed)
    }

    /// The residual stream's gradient: through the norm, plus what passes by it. Its sums over all tokens go to
    /// `delta_bias`.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedNorm,
        grad_output: Tensor,
        grad_residual: Option<Tensor>,
        delta_bias: Option<Param>,
    ) -> Result<Tensor> {
        let grad_input = cx.tensor("grad_residual", saved.input.shape, grad_output.dtype)?;
        cx.run(NormBackward {
            kind: self.kind,
            input: saved.input,
            weight: self.weight.weight,
            mean: saved.mean,
            rstd: saved.rstd,
            grad_output,
            grad_residual,
            grad_input,
            grad_weight: self.weight.grad,
            grad_bias: self.bias.map(|bias| bias.grad),
            grad_input_sums: delta_bias.map(|bias| bias.grad),
            accumulate: !cx.variant().overwrites,
        })?;
        Ok(grad_input)
    }
}
