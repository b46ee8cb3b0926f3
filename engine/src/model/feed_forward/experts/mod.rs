//! A feed-forward layer of experts: each token passes those that its router chooses.
//!
//! The rows of each expert are gathered from the tokens, multiplied by the expert's own matrices, and summed for each token.
//! The numbers of rows stay on the device. Backward gathers rows again and computes the activation again: so a layer keeps
//! one tensor with rows.
//!
//! The layer has two halves: the router and the shared expert, and the experts. Graphs may have the first alone.

mod bias;
mod dispatch;
mod matrices;
mod router;
mod sizes;
mod token_share;

use device::Tensor;
use device::ops::{Add, DropoutSite, ExpertGlu, ExpertGluBackward, Gate};
use graph_manager::Result;

use self::bias::Biases;
use self::dispatch::{Dispatch, Way};
use self::matrices::{Matrices, MatricesSpec};
use self::router::{Routed, RouterLayer, router_params};
pub(crate) use self::router::{router_terms, selection_biases};
pub use self::sizes::{BalanceGroup, BalanceLoss, Capacity, Experts, Keeps};
use self::token_share::TokenShare;
use super::dense::{DenseFeedForward, DenseSpec};
use crate::graph_options::GraphModule;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::dropout::{DropoutLayer, drop_in_place, dropout_backward};
use crate::model::gpt::GptShape;
use crate::model::layer::Saved;
use crate::model::linear::Lora;
use crate::model::norm::Normed;
use crate::model::part::{BlockPart, Halves, PartSpec, SavedInput};
use crate::model::sequence::Samples;
use crate::model::tensor_parallel::Channels;
use crate::model::token_cost::TokenCost;
use crate::params::ParamSpec;
use crate::step_policy::StepContext;

/// A feed-forward layer of experts before it has memory.
pub(super) struct ExpertSpec {
    pub(super) experts: Experts,
    /// The activation of experts.
    pub(super) gate: Gate,
    /// The shared expert.
    pub(super) shared: Option<DenseSpec>,
}

impl ExpertSpec {
    /// The first and the second matrices of experts.
    fn matrices(&self, shape: &GptShape, block: usize) -> [MatricesSpec; 2] {
        let (&Experts { count, per_token, ffn, .. }, hidden) = (&self.experts, shape.hidden);
        let (lora, fp8) = (shape.lora.as_ref(), shape.block_fp8(block));
        let name = |name: &str| format!("h.{block}.mlp.experts.{name}");
        // An expert's gate, then its gated values.
        let (gate_and_values, adapters) = (vec![count, 2, ffn], lora.and_then(|lora| lora.of_up(2)));
        let up = MatricesSpec {
            name: name("c_fc"),
            rows: gate_and_values,
            columns: hidden,
            channels: Channels::Rows,
            init: shape.matrix_init(),
            share_per_token: per_token as f64 / count as f64,
            fp8,
            adapters,
        };
        let down = MatricesSpec {
            name: name("c_proj"),
            rows: vec![count, hidden],
            columns: ffn,
            channels: Channels::Columns,
            init: shape.residual_init(),
            adapters: lora.and_then(Lora::of_down),
            ..up.clone()
        };
        [up, down]
    }
}

impl PartSpec for ExpertSpec {
    fn params(&self, of: &ShardedShape<'_>, block: usize, layer: usize) -> Vec<ParamSpec> {
        let matrices = self.matrices(of.shape, block);
        let sharded = matrices.iter().flat_map(|matrices| matrices.params(of.parallel, layer));
        let shared = self.shared.iter().flat_map(|shared| shared.params(of, block, layer));
        let biases = bias::params(&self.experts, of, block, layer);
        router_params(&self.experts, of, block, layer).chain(sharded).chain(biases).chain(shared).collect()
    }

    fn build(&self, builder: &LayerBuilder<'_>, block: usize) -> Box<dyn BlockPart> {
        let ranks = builder.of.parallel.expert_group();
        let gathers_tokens = self.experts.gather_tokens(ranks.as_ref().map_or(1, |ranks| ranks.size()));
        let row_budget = self.experts.row_budget;
        let dispatch = Dispatch {
            experts: self.experts.count,
            ranks,
            gathers_tokens: gathers_tokens && row_budget.is_none(),
            row_budget,
            rows_beyond: builder.step.rows_beyond,
        };
        let experts = dispatch.own();
        let [up, down] = self.matrices(builder.of.shape, block).map(|matrices| matrices.build(builder, experts));
        Box::new(ExpertFeedForward {
            router: RouterLayer::build(&self.experts, builder, block),
            dispatch,
            gate: self.gate,
            up,
            down,
            biases: Biases::build(builder, block),
            shared: self.shared.as_ref().map(|shared| shared.layer(builder, block)),
            output: builder.of.hidden_dropout(block + 1, 2),
            share: TokenShare::new(builder.of.parallel),
        })
    }

    fn cost(&self, shape: &GptShape, block: usize, tokens_per_sample: usize) -> TokenCost {
        let Experts { count, per_token, ffn, .. } = self.experts;
        let hidden = shape.hidden;
        let adapters: usize = self.matrices(shape, block).iter().map(MatricesSpec::weights_of_adapters).sum();
        // Three products of the chosen experts, each with a gathered input, and the sums of their rows; the router in f32.
        let of_experts = TokenCost {
            weights: per_token * (3 * hidden * ffn + adapters),
            values: per_token * (3 * (hidden + 2 * ffn) + 3 * (ffn + hidden) + 10 * ffn + 6 * hidden),
            ..TokenCost::default()
        };
        let router = TokenCost { weights: count * hidden, values: 2 * 3 * (hidden + count), ..TokenCost::default() };
        let shared = self.shared.iter().map(|shared| shared.cost(shape, block, tokens_per_sample));
        [of_experts, router].into_iter().chain(shared).sum()
    }
}

/// A feed-forward layer of experts over its parameters.
struct ExpertFeedForward {
    router: RouterLayer,
    dispatch: Dispatch,
    gate: Gate,
    /// `(experts * 2 ffn, hidden)`: of each expert the rows of its gate, then those of its gated values.
    up: Matrices,
    /// `(experts * hidden, ffn)`.
    down: Matrices,
    biases: Option<Biases>,
    shared: Option<DenseFeedForward>,
    output: DropoutLayer,
    share: TokenShare,
}

/// The choice of experts, and the shared expert's part of the output.
struct FirstHalf {
    /// `(.., hidden)`: the tokens that this rank brings.
    input: Tensor,
    routed: Routed,
    /// The order of rows by expert; `None` if the second half computes the order.
    way: Option<Way>,
    /// The shared expert's output, unless only backward comes after, and the values that the expert's backward needs.
    shared: Option<(Option<Tensor>, Saved)>,
}

struct SavedExperts {
    routed: Routed,
    way: Way,
    /// `(rows, 2 ffn)`.
    pre: Tensor,
    output: Option<DropoutSite>,
    samples: Samples,
    shared: Option<Saved>,
}

/// The stored normed values, for a part that does not compute normed values.
fn stored(normed: &Normed) -> Tensor {
    match normed {
        Normed::Stored(normed) => *normed,
        Normed::Computed(_) => unreachable!("a router reads stored values"),
    }
}

impl ExpertFeedForward {
    /// The first half; of the shared expert's forward what backward needs, or all.
    fn choose(
        &self,
        cx: &mut StepContext<'_>,
        normed: Normed,
        samples: Samples,
        needs_output: bool,
    ) -> Result<FirstHalf> {
        let input = self.share.take(cx, "all_normed", stored(&normed))?;
        let routed = self.router.forward(cx, input, samples)?;
        // If graphs have this half, they have the order of rows only if it is named too.
        let way = match cx.policy().names(GraphModule::ROW_ORDER) {
            true => Some(self.dispatch.way(cx, &routed)?),
            false => None,
        };
        let shared = match &self.shared {
            Some(shared) if needs_output => {
                let (output, saved) = shared.forward(cx, normed, samples)?;
                Some((Some(output), saved))
            }
            Some(shared) => Some((None, shared.prepare_backward(cx, normed, samples)?)),
            None => None,
        };
        Ok(FirstHalf { input, routed, way, shared })
    }

    /// The second half up to the activation: the values that backward needs, and the shared expert's output.
    fn to_pre(
        &self,
        cx: &mut StepContext<'_>,
        half: &FirstHalf,
        samples: Samples,
    ) -> Result<(SavedExperts, Option<Tensor>)> {
        let FirstHalf { input, routed, way, shared } = half;
        let way = match way {
            Some(way) => *way,
            None => self.dispatch.way(cx, routed)?,
        };
        let rows = self.up.input(cx, *input, &self.dispatch, &way)?;
        let pre = self.up.forward(cx, "expert_pre_activation", rows, &way.order)?;
        self.biases.as_ref().map_or(Ok(()), |biases| biases.add_up(cx, pre, &way.order))?;
        let output = self.output.site(cx, samples.record);
        let (also, shared) = match shared {
            Some((output, saved)) => (*output, Some(saved.clone())),
            None => (None, None),
        };
        Ok((SavedExperts { routed: *routed, way, pre, output, samples, shared }, also))
    }

    /// A buffer for the activated rows `(rows, ffn)`.
    fn activated(&self, cx: &mut StepContext<'_>, pre: &Tensor) -> Result<Tensor> {
        cx.tensor("expert_activated", [pre.shape.rows(), pre.shape.last() / 2], pre.dtype)
    }
}

impl BlockPart for ExpertFeedForward {
    fn forward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<(Tensor, Saved)> {
        let half = self.forward_first(cx, normed, samples)?;
        self.forward_second(cx, half, samples)
    }

    fn prepare_backward(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<Saved> {
        let half = self.choose(cx, normed, samples, false)?;
        self.to_pre(cx, &half, samples).map(|(saved, _)| Saved::new(saved))
    }

    fn backward(&self, cx: &mut StepContext<'_>, grad: Tensor, input: SavedInput<'_>, saved: &Saved) -> Result<Tensor> {
        let left = self.backward_second(cx, grad, input, saved)?;
        self.backward_first(cx, &left, saved)
    }

    fn for_backward(&self, saved: &Saved) -> Vec<Tensor> {
        let SavedExperts { pre, .. } = saved.get();
        vec![*pre]
    }

    fn halves(&self) -> Option<&dyn Halves> {
        Some(self)
    }
}

impl Halves for ExpertFeedForward {
    fn first(&self) -> GraphModule {
        GraphModule::ROUTER
    }

    fn forward_first(&self, cx: &mut StepContext<'_>, normed: Normed, samples: Samples) -> Result<Saved> {
        self.choose(cx, normed, samples, true).map(Saved::new)
    }

    fn forward_second(&self, cx: &mut StepContext<'_>, first: Saved, samples: Samples) -> Result<(Tensor, Saved)> {
        let half: &FirstHalf = first.get();
        let (saved, also) = self.to_pre(cx, half, samples)?;
        let (Way { order, weights, .. }, input) = (&saved.way, saved.pre);
        let output = self.activated(cx, &input)?;
        cx.run(ExpertGlu { gate: self.gate, input, weights: *weights, pairs: order.pairs, output })?;
        let output = self.down.input_of_rows(cx, output)?;
        let rows = self.down.forward(cx, "expert_outputs", output, order)?;
        self.biases.as_ref().map_or(Ok(()), |biases| biases.add_down(cx, rows, &saved.way))?;
        let delta = self.dispatch.sums(cx, "ffn_out", (rows, None), &half.input, &saved.way)?;
        let mut delta = self.share.give_back(cx, "ffn_out_here", delta)?;
        if let Some(also) = also {
            let output = cx.tensor("ffn_out_with_shared", delta.shape, delta.dtype)?;
            cx.run(Add { a: delta, b: also, output })?;
            delta = output;
        }
        drop_in_place(cx, delta, saved.output)?;
        Ok((delta, Saved::new(saved)))
    }

    fn backward_second(
        &self,
        cx: &mut StepContext<'_>,
        grad: Tensor,
        input: SavedInput<'_>,
        saved: &Saved,
    ) -> Result<Vec<Tensor>> {
        let saved: &SavedExperts = saved.get();
        let (way, pre) = (&saved.way, saved.pre);
        let &Way { order, weights, .. } = way;
        let grad_delta = dropout_backward(cx, "grad_ffn_out", grad, saved.output)?;
        let normed = stored(&input.read(cx)?);
        let input = self.share.take(cx, "all_normed_2", normed)?;

        // Through the down projection, by the row: the router's weight is part of its input.
        let grad_tokens = self.share.take(cx, "all_grad_ffn_out", grad_delta)?;
        let grad_rows = self.dispatch.rows(cx, "grad_expert_outputs", grad_tokens, way)?;
        let grad_here = self.down.grad(cx, grad_tokens, grad_rows, &self.dispatch, way)?;
        let (grad_output, of_down) = self.down.input_gradient(cx, "grad_expert_activated", grad_here, &order)?;
        let grad_input = cx.tensor("grad_expert_pre_activation", pre.shape, pre.dtype)?;
        let output = self.activated(cx, &pre)?;
        let grad_weights = cx.tensor("grad_expert_weights", weights.shape, weights.dtype)?;
        let (pairs, gate) = (order.pairs, self.gate);
        cx.run(ExpertGluBackward { gate, input: pre, weights, pairs, grad_output, grad_input, output, grad_weights })?;
        self.down.weight_gradient(cx, grad_rows, output, &order)?;
        self.down.adapter_gradients(cx, grad_rows, output, of_down)?;
        if let Some(biases) = &self.biases {
            biases.down_gradient(cx, grad_rows, way, grad_weights)?;
            biases.up_gradient(cx, grad_input, &order)?;
        }

        let rows = self.dispatch.rows(cx, "expert_inputs_2", input, way)?;
        self.up.weight_gradient(cx, grad_input, rows, &order)?;
        let grad_here = self.up.grad_of_rows(cx, grad_input)?;
        let (grad_rows, of_up) = self.up.input_gradient(cx, "grad_expert_inputs", grad_here, &order)?;
        self.up.adapter_gradients(cx, grad_input, rows, of_up)?;
        let grad_weights = self.dispatch.grad_weights(cx, &saved.routed, grad_weights, way)?;
        self.dispatch.count_rows_beyond(cx, way)?;
        Ok(vec![normed, input, grad_delta, grad_weights, grad_rows])
    }

    fn backward_first(&self, cx: &mut StepContext<'_>, left: &[Tensor], saved: &Saved) -> Result<Tensor> {
        let saved: &SavedExperts = saved.get();
        let &[normed, input, grad_delta, grad_weights, grad_rows] = left else {
            unreachable!("the second half leaves five tensors")
        };
        let of_router = self.router.backward(cx, input, &saved.routed, grad_weights, saved.samples)?;
        // One sum of both, rounded once.
        let grad_normed = self.dispatch.sums(cx, "grad_normed_2", (grad_rows, Some(of_router)), &input, &saved.way)?;
        let grad_normed = self.share.give_back(cx, "grad_normed_2_here", grad_normed)?;
        let (Some(shared), Some(saved)) = (&self.shared, &saved.shared) else { return Ok(grad_normed) };
        let also = shared.backward(cx, grad_delta, SavedInput::Stored(&Normed::Stored(normed)), saved)?;
        let output = cx.tensor("grad_normed_with_shared", grad_normed.shape, grad_normed.dtype)?;
        cx.run(Add { a: grad_normed, b: also, output })?;
        Ok(output)
    }
}
