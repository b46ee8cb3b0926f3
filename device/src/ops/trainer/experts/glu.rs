//! Gated linear units of rows, times the router's weights.

use crate::ops::{Gate, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, tensors};
use crate::{DType, Result, Tensor};

/// `output = f(gate) * up * weights[pairs[row]]`, with each row of `input` holding `[gate | up]`. The weight is part of
/// the down projection's input, so that no expert's output need be kept for the weight's gradient. Rows of dropped pairs are
/// set to 0: a scale may be that of all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGlu {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`.
    pub input: Tensor,
    /// `(tokens, k)`, f32: the weight of each pair.
    pub weights: Tensor,
    /// `(rows)`, i32: see [`ExpertRows::pairs`](super::ExpertRows::pairs).
    pub pairs: Tensor,
    /// `(rows, f)`.
    pub output: Tensor,
}

fn check_rows(op: &'static str, input: &Tensor, output: &Tensor, weights: &Tensor, pairs: &Tensor) -> Result<()> {
    ensure_float(op, &[("input", *input), ("output", *output)])?;
    let rows = input.shape.rows();
    ensure(op, input.shape.last() == 2 * output.shape.last() && output.shape.rows() == rows, || {
        format!("`[gate | up]` is {:?}, needs twice the last axis of {:?}", input.shape, output.shape)
    })?;
    ensure_dtype(op, "weights", weights, DType::F32)?;
    ensure_elements(op, "weights", weights, rows)?;
    ensure_dtype(op, "pairs", pairs, DType::I32)?;
    ensure_elements(op, "pairs", pairs, rows)
}

impl Operation for ExpertGlu {
    const NAME: &'static str = "expert_glu";

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.input, &self.output, &self.weights, &self.pairs)
    }

    tensors! { read input, weights, pairs; write output }
}

/// Gradient of [`ExpertGlu`] with respect to `[gate | up]` and the weights. Dropped pairs have the gradient 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGluBackward {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`, the forward's input.
    pub input: Tensor,
    /// `(tokens, k)`, f32.
    pub weights: Tensor,
    /// `(rows)`, i32.
    pub pairs: Tensor,
    /// `(rows, f)`.
    pub grad_output: Tensor,
    /// `(rows, 2 f)`, written.
    pub grad_input: Tensor,
    /// `(rows, f)`, written: the forward's output, which nothing keeps.
    pub output: Tensor,
    /// `(tokens, k)`, f32, written.
    pub grad_weights: Tensor,
}

impl Operation for ExpertGluBackward {
    const NAME: &'static str = "expert_glu_backward";

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.input, &self.output, &self.weights, &self.pairs)?;
        check_rows(Self::NAME, &self.grad_input, &self.grad_output, &self.grad_weights, &self.pairs)?;
        ensure_float(Self::NAME, &[("input", self.input), ("grad_output", self.grad_output)])?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, self.output.elements())
    }

    tensors! { read input, weights, pairs, grad_output; write grad_input, output, grad_weights }
}
