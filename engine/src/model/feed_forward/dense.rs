//! A feed-forward layer that every token passes whole: a matrix up to its width, an activation, a matrix down.

use device::Tensor;
use device::ops::DropoutSite;
use graph_manager::Result;

use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use crate::model::linear::{Linear, LinearSpec, PendingWeightGradients, tensor_like};
use crate::model::part::{BlockPart, PartSpec, Saved, SavedInput};
use crate::model::shape::GptShape;
use crate::model::tensor_parallel::TensorParallelRegion;
use crate::model::token_cost::TokenCost;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// What lies between the two matrices. `up` is the first `(groups * ffn, hidden)`, `down` the second `(hidden, ffn)`; on
/// each rank its own part of `ffn`.
pub(super) trait Activation {
    /// Groups of `ffn` rows that the first matrix packs.
    fn groups(&self) -> usize;

    /// The width `ffn` where none is given.
    fn default_width(&self, hidden: usize) -> usize;

    /// `activated` `(batch, seq, ffn)` from `input` `(batch, seq, hidden)` through `up`. Leaves in `pre`
    /// `(batch, seq, groups * ffn)` what backward starts from.
    ///
    /// # Errors
    /// What the device refused.
    fn forward(&self, cx: &StepContext<'_>, up: &Linear, input: Tensor, pre: Tensor, activated: Tensor) -> Result<()>;

    /// `grad_pre` through `down` and the activation.
    ///
    /// # Errors
    /// What the device refused.
    fn backward(&self, cx: &mut StepContext<'_>, down: &Linear, tensors: ActivationBackward) -> Result<()>;
}

/// The tensors of an activation's backward.
pub(super) struct ActivationBackward {
    /// `(batch, seq, hidden)`: gradient of the layer's output.
    pub(super) grad_output: Tensor,
    /// `(batch, seq, groups * ffn)`, of the forward.
    pub(super) pre: Tensor,
    /// As `pre`, written.
    pub(super) grad_pre: Tensor,
    /// `(batch, seq, ffn)`, of the forward.
    pub(super) activated: Tensor,
    /// `activated` was not saved. Backward writes it, to the bits of the forward.
    pub(super) recompute: bool,
}

/// A dense feed-forward layer before it has memory.
pub(super) struct DenseSpec {
    pub(super) activation: &'static dyn Activation,
}

impl DenseSpec {
    fn linears(&self, shape: &GptShape, block: usize) -> [LinearSpec; 2] {
        let GptShape { hidden, ffn, bias, .. } = *shape;
        let name = |name: &str| format!("h.{block}.mlp.{name}");
        let groups = vec![ffn; self.activation.groups()];
        [
            LinearSpec::column_parallel(name("c_fc"), hidden, groups, shape.matrix_init(), bias),
            LinearSpec::row_parallel(name("c_proj"), ffn, hidden, shape.residual_init(), bias),
        ]
    }
}

impl PartSpec for DenseSpec {
    fn params(&self, shape: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        self.linears(shape.shape, block).iter().flat_map(|linear| linear.params(shape.parallel, layer)).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let precision = builder.of.shape.precision;
        let [up, down] = self.linears(builder.of.shape, block).map(|linear| linear.build(builder.params, precision));
        Box::new(DenseFeedForward {
            activation: self.activation,
            up,
            down,
            output: builder.of.hidden_dropout(block + 1, 2),
            region: builder.of.region(),
            recompute: builder.of.shape.recompute,
        })
    }

    fn cost(&self, shape: &GptShape) -> TokenCost {
        let (up, ffn) = (self.activation.groups() * shape.ffn, shape.ffn);
        let activation = TokenCost { values: (up + ffn) + (2 * up + ffn), ..TokenCost::default() };
        self.linears(shape, 0).iter().map(LinearSpec::cost).chain([activation]).sum()
    }
}

/// A dense feed-forward layer over its parameters.
struct DenseFeedForward {
    activation: &'static dyn Activation,
    /// `(groups * ffn, hidden)`.
    up: Linear,
    /// `(hidden, ffn)`.
    down: Linear,
    output: DropoutLayer,
    region: TensorParallelRegion,
    /// Backward recomputes the activated values instead of keeping them.
    recompute: bool,
}

#[derive(Clone, Copy)]
struct SavedFeedForward {
    /// `(batch, seq, groups * ffn)`.
    pre: Tensor,
    /// `(batch, seq, ffn)`, unless it is recomputed.
    activated: Option<Tensor>,
    output: Option<DropoutSite>,
}

impl DenseFeedForward {
    /// Forward up to the second product: the activated values `(batch, seq, ffn)`, and what backward needs.
    fn activate(&self, cx: &mut StepContext<'_>, normed: Tensor, record: Tensor) -> Result<(Tensor, SavedFeedForward)> {
        let all_normed = self.region.gather_rows(cx, "all_normed", normed)?;
        let pre = self.up.output(cx, "pre_activation", &all_normed)?;
        let activated = tensor_like(cx, "activated", &pre, self.down.input_width())?;
        self.activation.forward(cx, &self.up, all_normed, pre, activated)?;
        let output = self.output.site(cx, record);
        Ok((activated, SavedFeedForward { pre, activated: (!self.recompute).then_some(activated), output }))
    }
}

impl BlockPart for DenseFeedForward {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Tensor, record: Tensor) -> Result<(Tensor, Saved)> {
        let (activated, saved) = self.activate(cx, normed, record)?;
        let names = ["ffn_out", "ffn_out_here"];
        let delta = self.down.forward_row_parallel(cx, activated, names, &self.region)?;
        drop_in_place(cx, delta, saved.output)?;
        Ok((delta, Saved::new(saved)))
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, normed: Tensor, record: Tensor) -> Result<Saved> {
        self.activate(cx, normed, record).map(|(_, saved)| Saved::new(saved))
    }

    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        input: SavedInput<'_>,
        saved: &Saved,
        pending: PendingWeightGradients,
    ) -> Result<(Tensor, PendingWeightGradients)> {
        let saved: SavedFeedForward = saved.get();
        let grad_delta = dropout_backward(cx, "grad_ffn_out", grad, saved.output)?;
        let grad_delta = pending.compute_during_gather(cx, "all_grad_ffn_out", grad_delta, &self.region)?;

        let normed = input.normed(cx)?;
        let normed = self.region.gather_rows_async(cx, "all_normed_2", normed)?;
        let grad_pre = cx.tensor("grad_pre_activation", saved.pre.shape, grad.dtype)?;
        let activated = match saved.activated {
            Some(activated) => activated,
            None => tensor_like(cx, "activated", &saved.pre, self.down.input_width())?,
        };
        let recompute = saved.activated.is_none();
        let tensors = ActivationBackward { grad_output: grad_delta, pre: saved.pre, grad_pre, activated, recompute };
        self.activation.backward(cx, &self.down, tensors)?;
        let pending = self.down.wgrad_during(cx, activated, grad_delta, self.region.is_shared())?;
        let names = ["grad_normed_2", "grad_normed_2_here"];
        let (normed, grad_normed) = self.up.dgrad_column_parallel(cx, normed, grad_pre, names, &self.region)?;
        pending.compute(cx)?;
        // With sequence parallelism a gather comes next; otherwise the sum that runs now is the last transfer.
        let pending = self.up.wgrad_during(cx, normed, grad_pre, self.region.parallel.splits_rows())?;
        Ok((grad_normed.join(cx)?, pending))
    }
}
