//! A norm of the residual stream. It first adds the output of the part before.

use device::ops::{AddPartialColumns, Norm, NormBackward, NormKind, PartialColumns, QuantizeSource, RowSums};
use device::{DType, Tensor};
use graph_manager::Result;

use super::gpt::GptShape;
use super::tensor_parallel::TensorParallel;
use super::token_cost::TokenCost;
use crate::microbatch::adds_to_gradients;
use crate::params::{Init, Param, ParamSpec, Params};
use crate::step_policy::StepContext;

/// A norm before it has memory: it declares the parameters, and builds the norm over them.
pub(crate) struct NormSpec<'s> {
    /// The beginning of the names of the norm's parameters.
    name: String,
    shape: &'s GptShape,
}

impl NormSpec<'_> {
    /// The norm of that name, as all norms of the shape.
    pub(crate) fn new(name: String, shape: &GptShape) -> NormSpec<'_> {
        NormSpec { name, shape }
    }

    fn has_bias(&self) -> bool {
        self.shape.bias && self.shape.norm == NormKind::Layer
    }

    /// The norm's parameters, `(hidden)` each: weight, then bias. `layer` is the layer that they belong to. Every rank has
    /// them whole; with sequence parallelism their gradients are those of the rank's rows.
    pub(crate) fn params(&self, parallel: &TensorParallel, layer: usize) -> Vec<ParamSpec> {
        let param = |name: &str, first: f32| {
            let spec =
                ParamSpec::new(format!("{}.{name}", self.name), [self.shape.hidden], Init::Constant(first), layer);
            parallel.partial_of_rows(spec)
        };
        let bias = self.has_bias().then(|| param("bias", 0.0));
        [param("weight", 1.0 - self.shape.norm.weight_offset())].into_iter().chain(bias).collect()
    }

    /// The norm over its parameters.
    pub(crate) fn build(&self, params: &Params) -> NormLayer {
        NormLayer {
            kind: self.shape.norm,
            weight: params.get(&format!("{}.weight", self.name)),
            bias: self.has_bias().then(|| params.get(&format!("{}.bias", self.name))),
            eps: self.shape.norm_eps as f32,
            recompute: self.shape.recompute,
        }
    }

    /// The norm's cost. Forward reads two tensors and writes two, because it also adds to the residual stream. Backward
    /// reads three and writes one.
    pub(crate) fn cost(&self) -> TokenCost {
        TokenCost { values: 8 * self.shape.hidden, ..TokenCost::default() }
    }
}

/// A norm's parameters, `(hidden)` each; only a LayerNorm has a bias.
#[derive(Clone, Copy)]
pub(crate) struct NormLayer {
    pub(crate) kind: NormKind,
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
    pub(crate) eps: f32,
    /// Whether backward recomputes the normed values, which then are not kept.
    pub(crate) recompute: bool,
}

/// The normed residual stream in the form that the part after the norm gets.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "a few live at a time, and what is copied need not be allocated")]
pub(crate) enum Normed {
    /// `(batch, seq, hidden)`, or this rank's rows `(1, rows, hidden)`.
    Stored(Tensor),
    /// Not stored. An 8-bit layer computes it while it quantises.
    Computed(QuantizeSource),
}

/// The values that a norm saves for its backward.
#[derive(Clone, Copy)]
pub(crate) struct SavedNorm {
    /// `(batch, seq, hidden)`, or this rank's rows `(1, rows, hidden)`: the residual stream.
    pub(crate) input: Tensor,
    /// `(rows)`, f32; LayerNorm only.
    mean: Option<Tensor>,
    /// `(rows)`, f32.
    rstd: Tensor,
    /// The normed values, if forward keeps or never stores normed values; `None` if backward recomputes such values.
    output: Option<Normed>,
}

impl NormLayer {
    /// Adds `delta` to the residual stream `x` and normalises the sum. Returns the new stream, the normed values, and
    /// the values that backward needs. All tensors have the residual stream's shape.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
    ) -> Result<(Tensor, Tensor, SavedNorm)> {
        let normed = cx.tensor("normed", x.shape, x.dtype)?;
        let saved = self.run(cx, x, delta, Some(normed))?;
        let output = (!self.recompute).then_some(Normed::Stored(normed));
        Ok((saved.input, normed, SavedNorm { output, ..saved }))
    }

    /// As [`NormLayer::forward`], but the normed values are not stored: whoever reads them computes them.
    pub(crate) fn forward_statistics(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
    ) -> Result<(Tensor, Normed, SavedNorm)> {
        let saved = self.run(cx, x, delta, None)?;
        let SavedNorm { input, mean, rstd, .. } = saved;
        let (weight, bias) = (self.weight.weight, self.bias.map(|bias| bias.weight));
        let weight_offset = self.kind.weight_offset();
        let normed = Normed::Computed(QuantizeSource::Norm { input, mean, rstd, weight, weight_offset, bias });
        Ok((input, normed, SavedNorm { output: Some(normed), ..saved }))
    }

    /// Runs the operation, which writes the normed values to `output` if there is one. The returned values have no
    /// output yet.
    fn run(
        &self,
        cx: &mut StepContext<'_>,
        x: Tensor,
        delta: Option<Tensor>,
        output: Option<Tensor>,
    ) -> Result<SavedNorm> {
        let shape = x.shape;
        let mean = match self.kind {
            NormKind::Layer => Some(cx.tensor("mean", [shape.rows()], DType::F32)?),
            NormKind::Rms | NormKind::Rms1p => None,
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
            output,
            mean,
            rstd,
            eps: self.eps,
        })?;
        Ok(SavedNorm { input: sum.unwrap_or(x), mean, rstd, output: None })
    }

    /// The normed values: as the forward left them, or recomputed to the same bits.
    pub(crate) fn output(&self, cx: &mut StepContext<'_>, saved: &SavedNorm) -> Result<Normed> {
        if let Some(output) = saved.output {
            return Ok(output);
        }
        self.forward(cx, saved.input, None).map(|(_, normed, _)| Normed::Stored(normed))
    }

    /// The residual stream's gradient: `grad_output` through the norm, plus `grad_residual`, the gradient that arrives
    /// by the residual path. The sum of the latter over all rows, `(hidden)`, is the gradient of `output_bias`.
    /// Parameter gradients are left to `sums`.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        saved: &SavedNorm,
        grad_output: Tensor,
        grad_residual: Option<Tensor>,
        output_bias: Option<Param>,
        sums: &mut NormSums,
    ) -> Result<Tensor> {
        let grad_input = cx.tensor("grad_residual", saved.input.shape, grad_output.dtype)?;
        let output_bias = output_bias.and_then(|bias| bias.grad);
        let of_sums = match output_bias {
            Some(_) => RowSums::ParametersAndResidual,
            None => RowSums::Parameters,
        };
        let parts = cx.device().norm_parts(&saved.input, of_sums);
        let mut parts_of = |output: Option<Tensor>| -> Result<Option<Tensor>> {
            let Some(output) = output else { return Ok(None) };
            let partial = cx.tensor("norm_gradient_parts", [parts, output.elements()], DType::F32)?;
            sums.push(PartialColumns { partial, output });
            Ok(Some(partial))
        };
        let op = NormBackward {
            kind: self.kind,
            input: saved.input,
            weight: self.weight.weight,
            mean: saved.mean,
            rstd: saved.rstd,
            grad_output,
            grad_residual,
            grad_input,
            weight_parts: parts_of(self.weight.grad)?,
            bias_parts: parts_of(self.bias.and_then(|bias| bias.grad))?,
            residual_parts: parts_of(output_bias)?,
        };
        cx.run(op)?;
        Ok(grad_input)
    }
}

/// The parts of parameter gradients, of all norms of a block. One operation adds them up.
#[must_use]
#[derive(Default)]
pub(crate) struct NormSums(Vec<PartialColumns>);

impl NormSums {
    pub(super) fn push(&mut self, sum: PartialColumns) {
        self.0.push(sum);
    }

    /// Adds the parts of parameter gradients up, if any parts are left. It is the end of the region that left the
    /// parts.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn add_up(self, cx: &StepContext<'_>) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        cx.run(AddPartialColumns { sums: self.0.into(), accumulate: adds_to_gradients(cx) })
    }
}
