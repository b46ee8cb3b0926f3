//! The biases of experts.

use device::Tensor;
use device::ops::{AddExpertBias, ExpertBiasDots, ExpertBiasGradient, ExpertRows, RowWeights};
use graph_manager::Result;
use parallel::Axis;

use super::dispatch::Way;
use super::sizes::Experts;
use crate::microbatch::adds_to_gradients;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::tensor_parallel::Channels;
use crate::params::{Init, Param, ParamSpec};
use crate::step_policy::StepContext;

/// The biases of all experts on this rank.
pub(super) struct Biases {
    /// `(experts * 2 ffn)`: of each expert those of its gate, then those of its gated values.
    up: Param,
    /// `(experts * hidden)`.
    down: Param,
    /// Whether this rank adds the biases of the second product. Of the ranks that share each expert the first does:
    /// their results are summed.
    adds_down: bool,
}

fn names(block: usize) -> [String; 2] {
    ["c_fc", "c_proj"].map(|name| format!("h.{block}.mlp.experts.{name}.bias"))
}

/// The parameters of both, if linear layers have biases.
pub(super) fn params(experts: &Experts, of: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
    if !of.shape.bias {
        return Vec::new();
    }
    let (&Experts { count, ffn, .. }, hidden) = (experts, of.shape.hidden);
    let share_per_token = experts.per_token as f64 / count as f64;
    let [up, down] = names(block);
    let spec =
        |name, rows: usize| ParamSpec { share_per_token, ..ParamSpec::new(name, [rows], Init::Constant(0.0), layer) };
    vec![
        of.parallel.of_experts(spec(up, count * 2 * ffn), vec![vec![count, 2, ffn]], Channels::Rows),
        of.parallel.of_experts(spec(down, count * hidden), vec![vec![count, hidden]], Channels::None),
    ]
}

impl Biases {
    /// The biases of a block over their parameters; `None` if linear layers have none.
    pub(super) fn build(builder: &LayerBuilder<'_>, block: usize) -> Option<Biases> {
        let ranks = &builder.of.parallel.ranks;
        let adds_down = ranks.place(ranks.axes(Axis::ExpertTensor)).index == 0;
        let biases = || {
            let [up, down] = names(block).map(|name| builder.params.get(&name));
            Biases { up, down, adds_down }
        };
        builder.of.shape.bias.then(biases)
    }

    /// Adds the biases of the first product to the product's `rows`, `(rows, 2 ffn)`.
    pub(super) fn add_up(&self, cx: &StepContext<'_>, rows: Tensor, order: &ExpertRows) -> Result<()> {
        cx.run(AddExpertBias { rows, bias: self.up.weight, offsets: order.offsets, weights: None })
    }

    /// Adds the biases of the second product to the product's `rows`, `(rows, hidden)`, which have the router's
    /// weights.
    pub(super) fn add_down(&self, cx: &StepContext<'_>, rows: Tensor, way: &Way) -> Result<()> {
        if !self.adds_down {
            return Ok(());
        }
        let weights = Some(weights_of(way));
        cx.run(AddExpertBias { rows, bias: self.down.weight, offsets: way.order.offsets, weights })
    }

    /// Computes the gradient of the biases of the first product, unless the biases are frozen.
    pub(super) fn up_gradient(&self, cx: &StepContext<'_>, rows: Tensor, order: &ExpertRows) -> Result<()> {
        let Some(grad) = self.up.grad else { return Ok(()) };
        let accumulate = adds_to_gradients(cx);
        cx.run(ExpertBiasGradient { rows, offsets: order.offsets, weights: None, grad, accumulate })
    }

    /// Computes the gradient of the biases of the second product, unless frozen, and adds the biases' part to the
    /// gradient of the router's weights.
    pub(super) fn down_gradient(
        &self,
        cx: &StepContext<'_>,
        rows: Tensor,
        way: &Way,
        grad_weights: Tensor,
    ) -> Result<()> {
        let (offsets, weights) = (way.order.offsets, weights_of(way));
        if self.adds_down {
            let (bias, pairs) = (self.down.weight, weights.pairs);
            cx.run(ExpertBiasDots { rows, bias, offsets, pairs, grad_weights })?;
        }
        let Some(grad) = self.down.grad else { return Ok(()) };
        let (weights, accumulate) = (Some(weights), adds_to_gradients(cx));
        cx.run(ExpertBiasGradient { rows, offsets, weights, grad, accumulate })
    }
}

fn weights_of(way: &Way) -> RowWeights {
    RowWeights { weights: way.weights, pairs: way.order.pairs }
}
