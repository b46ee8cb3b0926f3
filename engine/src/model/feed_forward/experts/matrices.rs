//! The matrices of all experts, and their products.

use device::ops::{ExpertRows, Fp8Matrix, GroupedGemm, GroupedProduct, QuantizeSource};
use device::{DType, Tensor};
use graph_manager::Result;

use super::dispatch::{Dispatch, Way};
use crate::fp8::{Copies, Operand, QuantizeAs};
use crate::microbatch::adds_to_gradients;
use crate::params::Param;
use crate::step_policy::StepContext;

/// The rows of experts in 8 bits. Tokens are quantised first: they are fewer than rows. Ranks that exchange rows have one
/// scale for all.
fn rows_8_bits(
    cx: &mut StepContext<'_>,
    name: &'static str,
    tokens: Tensor,
    (dispatch, way): (&Dispatch, &Way),
    quantize_as: QuantizeAs<'_>,
) -> Result<Operand> {
    let (source, shared_by) = (QuantizeSource::Stored(tokens), dispatch.ranks.as_ref());
    let quantize_as = QuantizeAs { shared_by, ..quantize_as };
    let of_tokens = Operand::quantized(cx, source, Copies::Rows, quantize_as)?.fp8_rows();
    let values = dispatch.rows(cx, name, of_tokens.values, way)?;
    Ok(Operand::of_rows(Fp8Matrix { values, ..of_tokens }))
}

/// A matrix `(n, k)` of each expert. In 8 bits, outputs and input gradients have factors of 8 bits with one scale a tensor;
/// weight gradients have factors of 16.
pub(super) struct Matrices {
    /// `(experts * n, k)`, with the experts of this rank.
    pub(super) param: Param,
    pub(super) experts: usize,
}

impl Matrices {
    /// The inputs of experts, from those of tokens.
    pub(super) fn input(
        &self,
        cx: &mut StepContext<'_>,
        tokens: Tensor,
        dispatch: &Dispatch,
        way: &Way,
    ) -> Result<Operand> {
        match &self.param.fp8 {
            Some(fp8) => rows_8_bits(cx, "expert_inputs_8bit", tokens, (dispatch, way), fp8.input_as(cx)),
            None => Ok(Operand::Plain(dispatch.rows(cx, "expert_inputs", tokens, way)?)),
        }
    }

    /// The inputs of experts, from these rows.
    pub(super) fn input_of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor) -> Result<Operand> {
        self.of_rows(cx, rows, self.param.fp8.as_ref().map(|fp8| fp8.input_as(cx)))
    }

    /// The gradients of the outputs of experts, from those of tokens. `rows` are the same in 16 bits.
    pub(super) fn grad(
        &self,
        cx: &mut StepContext<'_>,
        tokens: Tensor,
        rows: Tensor,
        dispatch: &Dispatch,
        way: &Way,
    ) -> Result<Operand> {
        match &self.param.fp8 {
            Some(fp8) => rows_8_bits(cx, "grad_expert_outputs_8bit", tokens, (dispatch, way), fp8.grad_output_as()),
            None => Ok(Operand::Plain(rows)),
        }
    }

    /// The gradients of the outputs of experts, from these rows.
    pub(super) fn grad_of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor) -> Result<Operand> {
        self.of_rows(cx, rows, self.param.fp8.as_ref().map(|fp8| fp8.grad_output_as()))
    }

    fn of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor, quantize_as: Option<QuantizeAs<'_>>) -> Result<Operand> {
        match quantize_as {
            Some(how) => Operand::quantized(cx, QuantizeSource::Stored(rows), Copies::Rows, how),
            None => Ok(Operand::Plain(rows)),
        }
    }

    /// The outputs `(rows, n)` of inputs `(rows, k)`.
    pub(super) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        input: Operand,
        order: &ExpertRows,
    ) -> Result<Tensor> {
        self.param.fp8.map_or(Ok(()), |fp8| fp8.make_copies(cx))?;
        let copy = self.param.fp8.map(|fp8| fp8.rows);
        let n = self.param.weight.shape.rows() / self.experts;
        self.product(cx, name, (GroupedProduct::Forward, n), input, copy, order)
    }

    /// The gradients `(rows, k)` of inputs, from those of outputs `(rows, n)`.
    pub(super) fn input_gradient(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        grad: Operand,
        order: &ExpertRows,
    ) -> Result<Tensor> {
        self.param.fp8.map_or(Ok(()), |fp8| fp8.make_copies_for_gradient(cx))?;
        let copy = self.param.fp8.map(|fp8| fp8.columns);
        let k = self.param.weight.shape.last();
        self.product(cx, name, (GroupedProduct::InputGradient, k), grad, copy, order)
    }

    fn product(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        (product, width): (GroupedProduct, usize),
        rows: Operand,
        copy: Option<Fp8Matrix>,
        order: &ExpertRows,
    ) -> Result<Tensor> {
        let (a, b, dtype, scales) = match copy {
            Some(matrices) => {
                let rows = rows.fp8_rows();
                let scales = [rows, matrices].map(|factor| factor.scale.tensor());
                (rows.values, matrices.values, DType::Bf16, Some(scales))
            }
            None => (rows.plain(), self.param.weight, rows.plain().dtype, None),
        };
        let out = cx.tensor(name, [a.shape.rows(), width], dtype)?;
        cx.run(GroupedGemm { product, offsets: order.offsets, a, b, out, scales, accumulate: false })?;
        Ok(out)
    }

    /// The gradient of the matrices, unless they are frozen.
    pub(super) fn weight_gradient(
        &self,
        cx: &StepContext<'_>,
        grad: Tensor,
        input: Tensor,
        order: &ExpertRows,
    ) -> Result<()> {
        let Some(out) = self.param.grad else { return Ok(()) };
        let (product, offsets) = (GroupedProduct::WeightGradient, order.offsets);
        let accumulate = adds_to_gradients(cx);
        cx.run(GroupedGemm { product, offsets, a: grad, b: input, out, scales: None, accumulate })
    }
}
