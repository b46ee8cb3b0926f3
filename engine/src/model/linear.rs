//! A linear layer: its parameters, its products forward and backward, and how ranks share it.

use device::ops::{BiasGrad, Epilogue, Gemm};
use device::{Shape, Tensor};
use graph_manager::Result;

use super::tensor_parallel::{PendingTransfer, TensorParallel, TensorParallelRegion};
use super::token_cost::TokenCost;
use crate::params::{Init, Param, ParamSpec, Params};
use crate::precision::{Precision, Product};
use crate::step_policy::StepContext;

/// A linear layer before it has memory: what it declares, and what it is built from.
pub(crate) struct LinearSpec {
    /// What the names of its parameters begin with.
    name: String,
    input: usize,
    output: usize,
    init: Init,
    bias: bool,
    split: Split,
}

/// How the ranks of a tensor-parallel group share a linear layer.
enum Split {
    /// By outputs, the bias too. The groups are the widths packed in the output, such as queries, keys and values; a rank
    /// has an equal part of each.
    Columns(Vec<usize>),
    /// By inputs. Each rank has the whole bias, and the ranks' results are summed.
    Rows,
}

impl LinearSpec {
    /// A layer whose outputs are split over the ranks. Its output packs `groups` of these widths.
    pub(crate) fn column_parallel(
        name: String,
        input: usize,
        groups: Vec<usize>,
        init: Init,
        bias: bool,
    ) -> LinearSpec {
        let output = groups.iter().sum();
        LinearSpec { name, input, output, init, bias, split: Split::Columns(groups) }
    }

    /// A layer whose inputs are split over the ranks.
    pub(crate) fn row_parallel(name: String, input: usize, output: usize, init: Init, bias: bool) -> LinearSpec {
        LinearSpec { name, input, output, init, bias, split: Split::Rows }
    }

    fn weight_name(&self) -> String {
        format!("{}.weight", self.name)
    }

    fn bias_name(&self) -> String {
        format!("{}.bias", self.name)
    }

    /// The parameters that this rank has of it: weight, then bias. `layer` is the layer that they belong to.
    pub(crate) fn params(&self, parallel: &TensorParallel, layer: usize) -> Vec<ParamSpec> {
        let weight = ParamSpec::new(self.weight_name(), [self.output, self.input], self.init, layer);
        let bias = self.bias.then(|| ParamSpec::new(self.bias_name(), [self.output], Init::Constant(0.0), layer));
        let (weight, bias) = match &self.split {
            Split::Columns(groups) => {
                (parallel.shard(weight, 0, groups), bias.map(|bias| parallel.shard(bias, 0, groups)))
            }
            Split::Rows => (parallel.shard(weight, 1, &[self.input]), bias),
        };
        [weight].into_iter().chain(bias).collect()
    }

    /// The layer over its parameters, whose products have the formats of a recipe.
    pub(crate) fn build(&self, params: &Params, precision: Precision) -> Linear {
        let bias = self.bias.then(|| params.get(&self.bias_name()));
        Linear { weight: params.get(&self.weight_name()), bias, precision }
    }

    /// What it costs, whole: each of its three products reads or writes input and output once.
    pub(crate) fn cost(&self) -> TokenCost {
        TokenCost { weights: self.input * self.output, values: 3 * (self.input + self.output), ..TokenCost::default() }
    }
}

/// A linear layer's parameters, or this rank's shard of them: weight `(out, in)` and, where there is one, bias `(out)`.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub(crate) weight: Param,
    pub(crate) bias: Option<Param>,
    pub(crate) precision: Precision,
}

impl Linear {
    /// Width of its output on this rank.
    pub(crate) fn width(&self) -> usize {
        self.weight.weight.shape.rows()
    }

    /// Width of its input on this rank.
    pub(crate) fn input_width(&self) -> usize {
        self.weight.weight.shape.last()
    }

    /// A buffer for its output `(..., out)`, for an input `(..., in)`.
    pub(crate) fn output(&self, cx: &mut StepContext<'_>, name: &'static str, input: &Tensor) -> Result<Tensor> {
        cx.tensor(name, with_width(input, self.width()), self.precision.output(Product::Forward))
    }

    /// A buffer for its input gradient `(..., in)`, for an output gradient `(..., out)`.
    pub(crate) fn input_gradient(
        &self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        grad_output: &Tensor,
    ) -> Result<Tensor> {
        cx.tensor(name, with_width(grad_output, self.input_width()), self.precision.output(Product::InputGradient))
    }

    /// `output` `(..., out)` from `input` `(..., in)`.
    pub(crate) fn forward(&self, cx: &StepContext<'_>, input: Tensor, output: Tensor) -> Result<()> {
        self.forward_through(cx, input, output, add_bias(self.bias))
    }

    /// The product of `input` `(..., in)` with the weight, through an epilogue.
    pub(crate) fn forward_through(
        &self,
        cx: &StepContext<'_>,
        input: Tensor,
        output: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        cx.run(Gemm::linear(input, self.weight.weight, output, epilogue))
    }

    /// Forward of a row-parallel layer: the sum of all ranks' products `(batch, seq, out)`, with sequence parallelism this
    /// rank's rows of it. The first rank adds the bias. `names` are those of the product and of this rank's rows.
    pub(crate) fn forward_row_parallel(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        names: [&'static str; 2],
        region: &TensorParallelRegion,
    ) -> Result<Tensor> {
        let output = self.output(cx, names[0], &input)?;
        self.forward_through(cx, input, output, add_bias(region.parallel.on_first_rank(self.bias)))?;
        region.reduce(cx, names[1], output)
    }

    /// Input gradient of a column-parallel layer. Takes the layer's input while its rows are still being gathered, and
    /// returns it gathered, with the pending sum of the input gradient over the ranks: `(batch, seq, in)`, with sequence
    /// parallelism this rank's rows. `names` are those of the gradient and of this rank's rows.
    pub(crate) fn dgrad_column_parallel(
        &self,
        cx: &mut StepContext<'_>,
        input: PendingTransfer,
        grad_output: Tensor,
        names: [&'static str; 2],
        region: &TensorParallelRegion,
    ) -> Result<(Tensor, PendingTransfer)> {
        let grad_input = self.input_gradient(cx, names[0], &grad_output)?;
        self.dgrad(cx, grad_output, grad_input, Epilogue::None)?;
        // Joined before the next transfer starts: a later join would wait for that transfer too.
        let input = input.join(cx)?;
        Ok((input, region.reduce_async(cx, names[1], grad_input)?))
    }

    /// The input gradient `(..., in)` from `grad_output` `(..., out)`, through an epilogue.
    pub(crate) fn dgrad(
        &self,
        cx: &StepContext<'_>,
        grad_output: Tensor,
        grad_input: Tensor,
        epilogue: Epilogue,
    ) -> Result<()> {
        cx.run(Gemm::dgrad(grad_output, self.weight.weight, grad_input, epilogue))
    }

    /// The gradients of weight and bias. A step whose backward is split runs them later, so nothing in the layer may write
    /// to `input` or `grad_output` after this call.
    pub(crate) fn wgrad(&self, cx: &mut StepContext<'_>, input: Tensor, grad_output: Tensor) -> Result<()> {
        let accumulate = !cx.variant().overwrites;
        cx.defer(Gemm::wgrad(grad_output, input, self.weight.grad, accumulate))?;
        match self.bias {
            Some(bias) => cx.defer(BiasGrad { grad_output, grad_bias: bias.grad, accumulate }),
            None => Ok(()),
        }
    }

    /// The gradients of weight and bias. With `transfer` the caller starts a transfer next, and computes the returned
    /// gradients while it runs. Without `transfer` they are computed here, which frees the buffers that they read.
    pub(crate) fn wgrad_during(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        grad_output: Tensor,
        transfer: bool,
    ) -> Result<PendingWeightGradients> {
        if transfer {
            return Ok(PendingWeightGradients(Some((*self, input, grad_output))));
        }
        self.wgrad(cx, input, grad_output)?;
        Ok(PendingWeightGradients::none())
    }
}

/// Weight gradients of a linear layer that are not computed yet. They will be, while a transfer runs.
#[must_use]
pub(crate) struct PendingWeightGradients(Option<(Linear, Tensor, Tensor)>);

impl PendingWeightGradients {
    /// Nothing is left to compute.
    pub(crate) fn none() -> PendingWeightGradients {
        PendingWeightGradients(None)
    }

    /// All rows of `rows`, as [`TensorParallelRegion::gather_rows`]; computes these gradients meanwhile.
    ///
    /// # Errors
    /// What the device refused.
    pub(crate) fn compute_during_gather(
        self,
        cx: &mut StepContext<'_>,
        name: &'static str,
        rows: Tensor,
        region: &TensorParallelRegion,
    ) -> Result<Tensor> {
        if self.0.is_none() {
            return region.gather_rows(cx, name, rows);
        }
        let gather = region.gather_rows_async(cx, name, rows)?;
        self.compute(cx)?;
        gather.join(cx)
    }

    /// Computes them, if any are left.
    pub(crate) fn compute(self, cx: &mut StepContext<'_>) -> Result<()> {
        let Some((linear, input, grad_output)) = self.0 else { return Ok(()) };
        linear.wgrad(cx, input, grad_output)
    }
}

fn add_bias(bias: Option<Param>) -> Epilogue {
    bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight))
}

/// The shape `(..., width)` of a tensor `(..., _)`.
fn with_width(like: &Tensor, width: usize) -> Shape {
    let mut sizes = like.shape.sizes().to_vec();
    sizes.pop();
    sizes.push(width);
    Shape::new(&sizes)
}

/// A buffer `(..., width)` with the rows and the type of `like` `(..., _)`.
pub(super) fn tensor_like(cx: &mut StepContext<'_>, name: &'static str, like: &Tensor, width: usize) -> Result<Tensor> {
    cx.tensor(name, with_width(like, width), like.dtype)
}
