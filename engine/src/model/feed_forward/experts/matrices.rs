//! The matrices of all experts, and their products.

use device::ops::{DropoutPart, ExpertRows, Fp8Matrix, GroupedGemm, GroupedProduct, QuantizeSource};
use device::{DType, Tensor};
use graph_manager::Result;
use parallel::Axis;

use super::dispatch::{Dispatch, Way};
use crate::fp8::{Copies, Fp8, Operand, QuantizeAs};
use crate::microbatch::adds_to_gradients;
use crate::model::builder::LayerBuilder;
use crate::model::linear::{Adapter, AdapterGradient, AdapterSpec};
use crate::model::tensor_parallel::{Channels, TensorParallel};
use crate::params::{Init, Param, ParamSpec};
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

/// The matrices of all experts before they have memory.
#[derive(Clone)]
pub(super) struct MatricesSpec {
    /// The beginning of the names of the matrices' parameters.
    pub(super) name: String,
    /// The number of experts, the number of packed matrices of an expert if there are several, and the rows of one
    /// matrix.
    pub(super) rows: Vec<usize>,
    pub(super) columns: usize,
    /// What ranks divide within an expert.
    pub(super) channels: Channels,
    pub(super) init: Init,
    /// The share of all experts that a token passes.
    pub(super) share_per_token: f64,
    pub(super) fp8: Option<Fp8>,
    pub(super) adapters: Option<AdapterSpec>,
}

impl MatricesSpec {
    fn experts(&self) -> usize {
        self.rows[0]
    }

    /// Rows of one of the packed matrices of an expert.
    fn height(&self) -> usize {
        self.rows[self.rows.len() - 1]
    }

    /// Parameters of this rank: the weight, then `A` and `B` of adapters.
    pub(super) fn params(&self, parallel: &TensorParallel, layer: usize) -> Vec<ParamSpec> {
        let of = |name: &str, rows: usize, columns: usize, init| ParamSpec {
            share_per_token: self.share_per_token,
            ..ParamSpec::new(format!("{}.{name}", self.name), [rows, columns], init, layer)
        };
        let weight = of("weight", self.rows.iter().product(), self.columns, self.init);
        let weight = ParamSpec { is_block_weight: true, fp8: self.fp8, ..weight };
        let mut params = vec![parallel.of_experts(weight, vec![self.rows.clone()], self.channels)];
        if let Some(AdapterSpec { rank, groups, .. }) = &self.adapters {
            let (experts, low) = (self.experts(), groups.len() * rank);
            // Rows of `B` by adapter: those of the matrices that it covers, packed as the weight packs them.
            let rows = |packed: usize| match packed {
                1 => vec![experts, self.height()],
                _ => vec![experts, packed, self.height()],
            };
            let parts: Vec<Vec<usize>> = groups.iter().map(|groups| rows(groups.len())).collect();
            let outputs = parts.iter().map(|rows| rows.iter().product::<usize>()).sum();
            let a = of("lora_A", experts * low, self.columns, AdapterSpec::init_of_a(self.columns));
            let b = of("lora_B", outputs, *rank, Init::Constant(0.0));
            let within = parallel.ranks.axes(Axis::ExpertTensor);
            let of_a = vec![vec![experts, low]];
            // Of the parameter that ranks do not divide within an expert, backward computes a part.
            params.extend(match self.channels {
                Channels::Columns => [
                    parallel.of_experts(a, of_a, Channels::Columns),
                    parallel.of_experts(b, parts, Channels::None).partial_over(within),
                ],
                _ => [
                    parallel.of_experts(a, of_a, Channels::None).partial_over(within),
                    parallel.of_experts(b, parts, Channels::Rows),
                ],
            });
        }
        params
    }

    /// The matrices over the parameters, with so many experts on this rank.
    pub(super) fn build(&self, builder: &LayerBuilder<'_>, experts: usize) -> Matrices {
        let param = |name: &str| builder.params.get(&format!("{}.{name}", self.name));
        let weight = param("weight");
        let packed = if self.rows.len() > 2 { self.rows[1] } else { 1 };
        let sizes = vec![weight.weight.shape.rows() / experts / packed; packed];
        let adapter = self.adapters.as_ref().map(|adapters| {
            let nothing = builder.of.dropout(0.0, 0, 0, DropoutPart::default());
            adapters.over(["lora_A", "lora_B"].map(param), experts, &sizes, nothing)
        });
        Matrices { param: weight, experts, adapter }
    }

    /// Parameters of the adapters of an expert.
    pub(super) fn weights_of_adapters(&self) -> usize {
        let of = |AdapterSpec { rank, groups, .. }: &AdapterSpec| -> usize {
            groups.iter().map(|groups| rank * (self.columns + groups.len() * self.height())).sum()
        };
        self.adapters.as_ref().map_or(0, of)
    }
}

/// A matrix `(n, k)` of each expert. In 8 bits, outputs and input gradients have factors of 8 bits with one scale a tensor;
/// weight gradients have factors of 16.
pub(super) struct Matrices {
    /// `(experts * n, k)`, with the experts of this rank.
    param: Param,
    experts: usize,
    adapter: Option<Adapter>,
}

impl Matrices {
    /// The inputs of experts, from the rows of tokens.
    pub(super) fn input(
        &self,
        cx: &mut StepContext<'_>,
        tokens: Tensor,
        dispatch: &Dispatch,
        way: &Way,
    ) -> Result<Operand> {
        let in_8_bits = match &self.param.fp8 {
            Some(fp8) => Some(rows_8_bits(cx, "expert_inputs_8bit", tokens, (dispatch, way), fp8.input_as(cx))?),
            None => None,
        };
        if let Some(rows) = in_8_bits.filter(|_| self.adapter.is_none()) {
            return Ok(rows);
        }
        let rows = dispatch.rows(cx, "expert_inputs", tokens, way)?;
        Ok(in_8_bits.map_or(Operand::Plain(rows), |in_8_bits| in_8_bits.beside(rows)))
    }

    /// The inputs of experts, from `rows`.
    pub(super) fn input_of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor) -> Result<Operand> {
        self.of_rows(cx, rows, self.param.fp8.as_ref().map(|fp8| fp8.input_as(cx)))
    }

    /// The gradients of the outputs of experts, from the gradients of tokens. `rows` are the same in 16 bits.
    pub(super) fn grad(
        &self,
        cx: &mut StepContext<'_>,
        tokens: Tensor,
        rows: Tensor,
        dispatch: &Dispatch,
        way: &Way,
    ) -> Result<Operand> {
        match &self.param.fp8 {
            Some(fp8) => {
                let name = "grad_expert_outputs_8bit";
                Ok(rows_8_bits(cx, name, tokens, (dispatch, way), fp8.grad_output_as())?.beside(rows))
            }
            None => Ok(Operand::Plain(rows)),
        }
    }

    /// The gradients of the outputs of experts, from `rows`.
    pub(super) fn grad_of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor) -> Result<Operand> {
        self.of_rows(cx, rows, self.param.fp8.as_ref().map(|fp8| fp8.grad_output_as()))
    }

    fn of_rows(&self, cx: &mut StepContext<'_>, rows: Tensor, quantize_as: Option<QuantizeAs<'_>>) -> Result<Operand> {
        match quantize_as {
            Some(how) => Ok(Operand::quantized(cx, QuantizeSource::Stored(rows), Copies::Rows, how)?.beside(rows)),
            None => Ok(Operand::Plain(rows)),
        }
    }

    /// The outputs `(rows, n)` of inputs `(rows, k)`, adapters included in modes that have adapters.
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
        let output = self.product(cx, name, (GroupedProduct::Forward, n), input, copy, order)?;
        if let Some(adapter) = self.adapter.filter(|_| cx.mode().mode.adapts()) {
            let saved = adapter.saved_of_experts(cx, &output, order.offsets)?;
            adapter.forward(cx, input.plain(), output, saved)?;
        }
        Ok(output)
    }

    /// The gradients `(rows, k)` of inputs, from the gradients of outputs `(rows, n)`. The second value is for
    /// [`Matrices::adapter_gradients`].
    pub(super) fn input_gradient(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        grad: Operand,
        order: &ExpertRows,
    ) -> Result<(Tensor, Option<AdapterGradient>)> {
        self.param.fp8.map_or(Ok(()), |fp8| fp8.make_copies_for_gradient(cx))?;
        let copy = self.param.fp8.map(|fp8| fp8.columns);
        let k = self.param.weight.shape.last();
        let grad_input = self.product(cx, name, (GroupedProduct::InputGradient, k), grad, copy, order)?;
        let Some(adapter) = self.adapter else { return Ok((grad_input, None)) };
        let saved = adapter.saved_of_experts(cx, &grad_input, order.offsets)?;
        let of_adapter = adapter.gradient(cx, saved, &grad_input)?;
        adapter.input_gradient(cx, of_adapter, grad.plain(), grad_input)?;
        Ok((grad_input, Some(of_adapter)))
    }

    /// The gradients of adapters, from the gradients of outputs and from inputs. The products of inputs with `A` are
    /// made again: they are not kept for all rows.
    pub(super) fn adapter_gradients(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        input: Tensor,
        of_adapter: Option<AdapterGradient>,
    ) -> Result<()> {
        let (Some(adapter), Some(of_adapter)) = (self.adapter, of_adapter) else { return Ok(()) };
        adapter.prepare_backward(cx, input, of_adapter.saved)?;
        adapter.weight_gradients(cx, of_adapter, input, grad)
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
        cx.run(GroupedGemm { scales, ..GroupedGemm::new(product, order.offsets, [a, b], out) })?;
        Ok(out)
    }

    /// The gradient of the matrices, unless the matrices are frozen.
    pub(super) fn weight_gradient(
        &self,
        cx: &StepContext<'_>,
        grad: Tensor,
        input: Tensor,
        order: &ExpertRows,
    ) -> Result<()> {
        let Some(out) = self.param.grad else { return Ok(()) };
        let accumulate = adds_to_gradients(cx);
        let product = GroupedGemm::new(GroupedProduct::WeightGradient, order.offsets, [grad, input], out);
        cx.run(GroupedGemm { accumulate, ..product })
    }
}
