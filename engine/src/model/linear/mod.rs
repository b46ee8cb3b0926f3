//! A linear layer: its parameters, its products forward and backward, and how ranks share it.
//!
//! Products read an [`Operand`]: the tensor itself, or its copies in 8 bits (`operands.rs`). So a forward and a backward have
//! two steps each:
//!
//! - Forward: [`Linear::normed_input`] (of normed values) or [`Linear::input`] make the operand, [`Linear::forward`]
//!   multiplies.
//! - Backward: [`Linear::gathered_grad_output`] (from this rank's rows) or [`Linear::grad_output`] make the operand.
//!   Then comes [`Linear::backward`], or its two parts: [`Linear::dgrad`] and [`Linear::weight_gradients`].
//!
//! [`Linear::forward_row_parallel`] and [`Linear::backward_column_parallel`] also sum over the ranks that share the
//! layer.

mod adapted;
mod adapted_weight;
mod adapter;
mod lora;
mod operands;
#[cfg(test)]
mod parity;
mod spec;
mod tiles;
mod weight_input;

use device::Tensor;
use device::ops::{BiasGrad, Epilogue, Gemm};
use graph_manager::Result;

use super::buffers::with_width;
use super::dropout::DropoutLayer;
use super::tensor_parallel::TensorParallel;
use crate::fp8::Operand;
use crate::microbatch::adds_to_gradients;
use crate::params::Param;
use crate::precision::{Precision, Product};
use crate::step_policy::StepContext;
pub use adapted::{AdaptedLayer, AdapterRows};
pub(crate) use adapter::{Adapter, AdapterGradient, AdapterSpec, SavedAdapter};
pub use lora::{Lora, LoraTarget, is_adapter};
pub(crate) use spec::LinearSpec;
pub(crate) use weight_input::WeightInput;

/// A linear layer's parameters, or this rank's shard of the parameters: weight `(out, in)` and, if there is one, bias
/// `(out)`.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
    /// A norm computes the bias's gradient.
    bias_left_to_norm: bool,
    pub(crate) precision: Precision,
    adapter: Option<Adapter>,
}

impl Linear {
    /// Whether the layer has adapters: then a product with its epilogue cannot do all of its work.
    pub(crate) fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// The bias, if the norm that reads the gradient of the residual stream can compute the bias's gradient: if no
    /// dropout lies between this layer's output and the stream, and all rows are on this rank. From now on this layer
    /// does not compute it.
    pub(crate) fn leave_bias_to_norm(&mut self, output: &DropoutLayer, ranks: &TensorParallel) -> Option<Param> {
        self.bias_left_to_norm = output.is_off() && !ranks.splits_rows();
        self.bias.filter(|_| self.bias_left_to_norm)
    }

    /// The gradient of the bias, if this layer computes that gradient.
    fn bias_grad(&self) -> Option<Tensor> {
        self.bias.filter(|_| !self.bias_left_to_norm).and_then(|bias| bias.grad)
    }

    /// Width of the layer's output on this rank.
    pub(crate) fn width(&self) -> usize {
        self.weight.weight.shape.rows()
    }

    /// Width of the layer's input on this rank.
    pub(crate) fn input_width(&self) -> usize {
        self.weight.weight.shape.last()
    }

    /// Whether the layer's products have 8-bit factors.
    pub(crate) fn is_8_bit(&self) -> bool {
        self.weight.fp8.is_some()
    }

    /// A buffer for the layer's output `(..., out)`, for an input `(..., in)`.
    pub(crate) fn output(&self, cx: &mut StepContext<'_>, name: &'static str, input: &Tensor) -> Result<Tensor> {
        cx.tensor(name, with_width(input, self.width()), self.precision.output(Product::Forward))
    }

    /// A buffer for the layer's input gradient `(..., in)`, for an output gradient `(..., out)`.
    pub(crate) fn input_gradient(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        grad_output: &Tensor,
    ) -> Result<Tensor> {
        cx.tensor(name, with_width(grad_output, self.input_width()), self.precision.output(Product::InputGradient))
    }

    /// Writes `output` `(..., out)` from `input` `(..., in)`. `record` is the microbatch's `SampleRecord`, for dropout
    /// of adapters. Returns the values that their backward needs.
    pub(crate) fn forward(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        output: Tensor,
        record: Option<Tensor>,
    ) -> Result<Option<SavedAdapter>> {
        self.make_copies(cx)?;
        let saved = self.saved_adapter(cx, input.rows(), record)?;
        self.product(cx, input, output, saved)?;
        Ok(saved)
    }

    /// Makes the 8-bit copies of the weight that the step's products read, if the copies are to be made now. It comes
    /// before the first product.
    pub(crate) fn make_copies(&self, cx: &StepContext<'_>) -> Result<()> {
        self.weight.fp8.map_or(Ok(()), |fp8| fp8.make_copies(cx))
    }

    /// Memory for the values that the backward of adapters needs, for an input with the rows of `rows`; `None` without
    /// adapters, and in modes without adapters. `record` is the microbatch's `SampleRecord`, for their dropout.
    pub(crate) fn saved_adapter(
        &self,
        cx: &mut StepContext<'_>,
        rows: &Tensor,
        record: Option<Tensor>,
    ) -> Result<Option<SavedAdapter>> {
        let adapter = self.adapter.filter(|_| cx.mode().mode.adapts());
        adapter.map(|adapter| adapter.saved(cx, rows, record)).transpose()
    }

    /// As [`Linear::forward`], with [memory for what adapters save](Linear::saved_adapter).
    pub(crate) fn product(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        output: Tensor,
        saved: Option<SavedAdapter>,
    ) -> Result<()> {
        self.forward_through(cx, input, output, add_bias(self.bias))?;
        self.adapt(cx, input, output, saved)
    }

    /// Adds the adapters' output to `output` `(..., out)`, in modes with adapters.
    fn adapt(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        output: Tensor,
        saved: Option<SavedAdapter>,
    ) -> Result<()> {
        let (Some(adapter), Some(saved)) = (self.adapter, saved) else { return Ok(()) };
        adapter.forward(cx, input.plain(), output, saved)
    }

    /// Writes the values that the adapters' backward needs, for a backward that recomputes the forward without the
    /// layer's output.
    pub(crate) fn prepare_backward(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        saved: Option<SavedAdapter>,
    ) -> Result<()> {
        let (Some(adapter), Some(saved)) = (self.adapter, saved) else { return Ok(()) };
        adapter.prepare_backward(cx, input.plain(), saved)
    }

    /// The product of [`Linear::forward`] through `epilogue`, which adds the bias if wanted, and without adapters.
    pub(crate) fn forward_through(
        &self,
        cx: &StepContext<'_>,
        input: &Operand,
        output: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        match (&self.weight.fp8, input) {
            (Some(fp8), Operand::Fp8 { rows: Some(rows), .. }) => {
                let fast = fp8.fp8.recipe.is_fast_forward();
                cx.run(Gemm { epilogue, ..Gemm::fp8(*rows, fp8.rows, output, fast) })
            }
            _ => cx.run(Gemm::linear(input.plain(), self.weight.weight, output, epilogue)),
        }
    }

    /// Forward of a row-parallel layer: the sum of all ranks' products `(batch, seq, out)`, with sequence parallelism
    /// this rank's rows of it. The first rank adds the bias. `record` and the second value are as in
    /// [`Linear::forward`], `names` are those of the product and of this rank's rows.
    pub(crate) fn forward_row_parallel(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        record: Option<Tensor>,
        names: [&'static str; 2],
        ranks: &TensorParallel,
    ) -> Result<(Tensor, Option<SavedAdapter>)> {
        self.make_copies(cx)?;
        let output = self.output(cx, names[0], input.rows())?;
        let saved = self.saved_adapter(cx, input.rows(), record)?;
        self.row_parallel_product(cx, input, output, saved, ranks)?;
        Ok((ranks.reduce(cx, names[1], output)?, saved))
    }

    /// The partial sum of a row-parallel layer's forward, with [memory for what adapters save](Linear::saved_adapter).
    pub(crate) fn row_parallel_product(
        &self,
        cx: &mut StepContext<'_>,
        input: &Operand,
        output: Tensor,
        saved: Option<SavedAdapter>,
        ranks: &TensorParallel,
    ) -> Result<()> {
        self.forward_through(cx, input, output, add_bias(ranks.on_first_rank(self.bias)))?;
        self.adapt(cx, input, output, saved)
    }

    /// Backward of a column-parallel layer, from the layer's input and the gradient `(..., out)` of the layer's output.
    /// Returns the sum of the input gradient over the ranks: `(batch, seq, in)`, or this rank's rows with sequence
    /// parallelism. Forward returned `adapter`. `names` are those of the input gradient and of this rank's rows.
    pub(crate) fn backward_column_parallel(
        &self,
        cx: &mut StepContext<'_>,
        input: WeightInput,
        grad_output: Operand,
        adapter: Option<SavedAdapter>,
        names: [&'static str; 2],
        ranks: &TensorParallel,
    ) -> Result<Tensor> {
        let grad_input = self.input_gradient(cx, names[0], grad_output.rows())?;
        let input = input.operand(cx, self)?;
        self.backward(cx, input, grad_output, grad_input, adapter)?;
        ranks.reduce(cx, names[1], grad_input)
    }

    /// Writes the input gradient `grad_input` `(..., in)` from `grad_output` `(..., out)`, and all gradients of
    /// parameters. Forward returned `adapter`. Gradients of the weight and the bias come first, so that they need not
    /// wait for the input gradient. As of [`Linear::weight_gradients`], nothing may write `input` or `grad_output`
    /// afterwards.
    pub(crate) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Operand,
        grad_output: Operand,
        grad_input: Tensor,
        adapter: Option<SavedAdapter>,
    ) -> Result<()> {
        self.own_gradients(cx, input, grad_output)?;
        let adapter = self.adapter_gradient(cx, adapter, grad_output.rows())?;
        self.dgrad(cx, &grad_output, grad_input, Epilogue::None, adapter)?;
        self.adapter_gradients(cx, input, grad_output, adapter)
    }

    /// Writes the input gradient `grad_input` `(..., in)` from `grad_output` `(..., out)`, through an epilogue. A layer
    /// with adapters takes none, and writes the tensors that the gradients of their weights are computed from.
    pub(crate) fn dgrad(
        &self,
        cx: &mut StepContext<'_>,
        grad_output: &Operand,
        grad_input: Tensor,
        epilogue: Epilogue,
        adapter: Option<AdapterGradient>,
    ) -> Result<()> {
        self.product_for_input(cx, grad_output, grad_input, epilogue)?;
        let (Some(own), Some(of)) = (self.adapter, adapter) else { return Ok(()) };
        own.input_gradient(cx, of, grad_output.plain(), grad_input)
    }

    /// Memory for the tensors that the gradients of the adapters' weights are computed from, for an output gradient
    /// with the rows of `rows`. Forward returned `saved`.
    pub(crate) fn adapter_gradient(
        &self,
        cx: &mut StepContext<'_>,
        saved: Option<SavedAdapter>,
        rows: &Tensor,
    ) -> Result<Option<AdapterGradient>> {
        match (self.adapter, saved) {
            (None, _) => Ok(None),
            (Some(own), Some(saved)) => own.gradient(cx, saved, rows).map(Some),
            (Some(_), None) => unreachable!("an adapter's forward comes before its backward"),
        }
    }

    fn product_for_input(
        &self,
        cx: &StepContext<'_>,
        grad_output: &Operand,
        grad_input: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        match (&self.weight.fp8, grad_output) {
            (Some(fp8), Operand::Fp8 { rows: Some(rows), .. }) => {
                fp8.make_copies_for_gradient(cx)?;
                cx.run(Gemm { epilogue, ..Gemm::fp8(*rows, fp8.columns, grad_input, false) })
            }
            _ => cx.run(Gemm::dgrad(grad_output.plain(), self.weight.weight, grad_input, epilogue)),
        }
    }

    /// The gradients of weight, bias and adapters; [`Linear::dgrad`] has written `adapter`. They may be computed
    /// later, so nothing in the layer may write to `input` or `grad_output` after this call.
    pub(crate) fn weight_gradients(
        &self,
        cx: &mut StepContext<'_>,
        input: Operand,
        grad_output: Operand,
        adapter: Option<AdapterGradient>,
    ) -> Result<()> {
        self.own_gradients(cx, input, grad_output)?;
        self.adapter_gradients(cx, input, grad_output, adapter)
    }

    /// The gradients of weight and bias, without the adapters' gradients.
    fn own_gradients(&self, cx: &mut StepContext<'_>, input: Operand, grad_output: Operand) -> Result<()> {
        self.weight_gradient(cx, input, grad_output)?;
        match grad_output {
            Operand::Plain(grad_output) => self.bias_gradient(cx, grad_output).map_or(Ok(()), |op| cx.run(op)),
            // It was computed when the output gradient was made.
            Operand::Fp8 { .. } => Ok(()),
        }
    }

    fn adapter_gradients(
        &self,
        cx: &mut StepContext<'_>,
        input: Operand,
        grad_output: Operand,
        adapter: Option<AdapterGradient>,
    ) -> Result<()> {
        match (self.adapter, adapter) {
            (None, _) => Ok(()),
            (Some(own), Some(of)) => own.weight_gradients(cx, of, input.plain(), grad_output.plain()),
            (Some(_), None) => unreachable!("an adapter's input gradient comes first"),
        }
    }

    /// The gradient of the weight alone, unless the weight is frozen. See [`Linear::weight_gradients`].
    pub(crate) fn weight_gradient(&self, cx: &mut StepContext<'_>, input: Operand, grad_output: Operand) -> Result<()> {
        let Some(grad_weight) = self.weight.grad else { return Ok(()) };
        let accumulate = adds_to_gradients(cx);
        if let (Operand::Fp8 { columns: Some(input), .. }, Operand::Fp8 { columns: Some(grad), .. }) =
            (input, grad_output)
        {
            return cx.run(Gemm { accumulate, ..Gemm::fp8(grad, input, grad_weight, false) });
        }
        cx.run(Gemm::wgrad(grad_output.plain(), input.plain(), grad_weight, accumulate))
    }

    /// The operation that computes the gradient of the bias, if this layer computes that gradient.
    pub(crate) fn bias_gradient(&self, cx: &StepContext<'_>, grad_output: Tensor) -> Option<BiasGrad> {
        let accumulate = adds_to_gradients(cx);
        self.bias_grad().map(|grad_bias| BiasGrad { grad_output, grad_bias, accumulate })
    }
}

fn add_bias(bias: Option<Param>) -> Epilogue {
    bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight))
}
