//! The router: a linear layer in f32 whose outputs choose and weigh the experts of each token.

use std::rc::Rc;

use device::ops::{
    Balance, BiasGrad, Collective, CollectiveKind, Copy, CountLoad, CountedLoads, Epilogue, Gemm, LimitLoad, Route,
    RouteBackward, Router, SampleTokens, SequenceShare, SumInto, ZLoss,
};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;
use parallel::{Axis, Purpose};

use super::sizes::{BalanceGroup, BalanceLoss, Capacity, Experts, Keeps};
use super::token_share::TokenShare;
use crate::batch_sizes::BatchSizes;
use crate::layer_partition::StageLayers;
use crate::microbatch::adds_to_gradients;
use crate::model::builder::{LayerBuilder, ShardedShape};
use crate::model::expert_loads::SelectionBias;
use crate::model::loss_term::LossTerm;
use crate::model::sequence::{Samples, WholeSamples};
use crate::params::{Init, Param, ParamSpec};
use crate::step_policy::StepContext;

/// See [`BalanceLoss`]. It is the sum over layers.
const BALANCE_LOSS: LossTerm = LossTerm::minimised("balance_loss");

/// The z-loss of routers, the sum over layers.
const ROUTER_Z_LOSS: LossTerm = LossTerm::minimised("router_z_loss");

/// The terms of the loss that routers compute.
pub(crate) fn router_terms(experts: &Experts) -> impl Iterator<Item = LossTerm> {
    let balance = experts.balance.map(|_| BALANCE_LOSS);
    balance.into_iter().chain((experts.z_loss_multiplier != 0.0).then_some(ROUTER_Z_LOSS))
}

fn weight_name(block: usize) -> String {
    format!("h.{block}.mlp.router.weight")
}

fn logit_bias_name(block: usize) -> String {
    format!("h.{block}.mlp.router.logit_bias")
}

fn bias_name(block: usize) -> String {
    format!("h.{block}.mlp.router.bias")
}

/// The router's weight, `(experts, hidden)`, in f32 whatever the model's precision. Every rank has it whole and computes a
/// part of its gradient: from its own channels of each expert, or from its own tokens. So it is with the bias of logits,
/// `(experts)`, if linear layers have biases. The selection bias, `(experts)`, if
/// there is one, has no gradient: see [`SelectionBias`].
pub(super) fn router_params(
    experts: &Experts,
    of: &ShardedShape<'_>,
    block: usize,
    layer: usize,
) -> impl Iterator<Item = ParamSpec> {
    let spec = ParamSpec::new(weight_name(block), [experts.count, of.shape.hidden], of.shape.matrix_init(), layer);
    let weight = of.parallel.partial(ParamSpec { always_f32: true, ..spec });
    let logit_bias = of.shape.bias.then(|| {
        let spec = ParamSpec::new(logit_bias_name(block), [experts.count], Init::Constant(0.0), layer);
        of.parallel.partial(ParamSpec { always_f32: true, ..spec })
    });
    let bias = experts.bias_update_rate.map(|_| {
        let spec = ParamSpec::new(bias_name(block), [experts.count], Init::Constant(0.0), layer);
        ParamSpec { always_f32: true, frozen: true, stays_whole: true, ..spec }
    });
    [weight].into_iter().chain(logit_bias).chain(bias)
}

/// The selection biases of a stage's routers. A router that is frozen keeps its bias too.
pub(crate) fn selection_biases(builder: &LayerBuilder<'_>, layers: &StageLayers) -> Vec<SelectionBias> {
    let LayerBuilder { of, params, step } = builder;
    let rate = of.shape.experts.as_ref().and_then(|experts| experts.bias_update_rate);
    let (Some(rate), Some(loads)) = (rate, &step.expert_loads) else { return Vec::new() };
    let here = loads.blocks.iter().filter(|block| layers.has(layers.of_block(**block)));
    let trains = |block: &&usize| params.get(&weight_name(**block)).grad.is_some();
    let of_block = |&block: &usize| {
        let bias = params.get(&bias_name(block)).weight;
        SelectionBias { load: loads.of_experts(block), bias: bias.view(0, [1, bias.elements()]), rate: rate as f32 }
    };
    here.filter(trains).map(of_block).collect()
}

/// A router over its parameters.
pub(super) struct RouterLayer {
    /// `(experts, hidden)`, f32.
    weight: Param,
    /// `(experts)`, f32: the bias of logits.
    logit_bias: Option<Param>,
    /// `(experts)`, f32: the selection bias.
    bias: Option<Tensor>,
    /// The load of the step, in a model that trains: see [`ExpertLoads::of`](crate::model::ExpertLoads).
    load: Option<Tensor>,
    /// The ranks over which the balance loss sums the loads of a step.
    load_ranks: Option<Rc<dyn Communicator>>,
    /// The ranks that divide samples.
    whole: Option<WholeSamples>,
    router: Router,
    capacity: Option<Capacity>,
    per_token: usize,
    /// The balance loss, and the loss's sum over microbatches and layers.
    balance: Option<(BalanceLoss, Tensor)>,
    /// The multiplier of the z-loss, and the z-loss's sum.
    z_loss: Option<(f32, Tensor)>,
    share: TokenShare,
    /// Whether this rank adds the gradients of the router's losses. Ranks with tokens of their own all do; of ranks with the
    /// same tokens the first does.
    adds_gradient: bool,
    control: Tensor,
}

/// The choice of a microbatch's experts.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    /// `(all tokens, experts)`, f32.
    logits: Tensor,
    /// `(all tokens, per_token)`, i32.
    chosen: Tensor,
    /// `(all tokens, per_token)`, i32: `chosen` without the choices that are dropped; see [`LimitLoad`].
    kept: Tensor,
    /// `(tokens, per_token)`, i32: those kept of the tokens that this rank brings.
    pub(super) own: Tensor,
    /// `(tokens, per_token)`, f32: their weights.
    pub(super) weights: Tensor,
}

impl RouterLayer {
    pub(super) fn build(experts: &Experts, builder: &LayerBuilder<'_>, block: usize) -> RouterLayer {
        let LayerBuilder { of, params, step } = builder;
        let (sum, ranks, share) = (|term| step.losses.of(term), &of.parallel.ranks, TokenShare::new(of.parallel));
        RouterLayer {
            weight: params.get(&weight_name(block)),
            logit_bias: of.shape.bias.then(|| params.get(&logit_bias_name(block))),
            bias: experts.bias_update_rate.map(|_| params.get(&bias_name(block)).weight),
            load: step.expert_loads.as_ref().map(|loads| loads.of(block)),
            load_ranks: ranks.for_purpose(ranks.axes(Axis::Tokens), Purpose::Loads).cloned(),
            whole: WholeSamples::new(ranks),
            router: experts.router,
            capacity: experts.capacity,
            per_token: experts.per_token,
            balance: experts.balance.zip(sum(BALANCE_LOSS)),
            z_loss: sum(ROUTER_Z_LOSS).map(|sum| (experts.z_loss_multiplier as f32, sum)),
            adds_gradient: share.place.has_others() || of.parallel.rank() == 0,
            share,
            control: step.control,
        }
    }

    /// Chooses the experts of each token. `input` has the tokens that this rank brings, `(.., hidden)`.
    pub(super) fn forward(&self, cx: &mut StepContext<'_>, input: Tensor, samples: Samples) -> Result<Routed> {
        let (experts, k) = (self.weight.weight.shape.rows(), self.per_token);
        let exact = in_f32(cx, input)?;
        let logits = cx.tensor("router_logits", [input.shape.rows(), experts], DType::F32)?;
        let epilogue = self.logit_bias.map_or(Epilogue::None, |bias| Epilogue::Bias(bias.weight));
        cx.run(Gemm::linear(exact, self.weight.weight, logits, epilogue))?;
        let logits = self.share.all_of(cx, "all_router_logits", logits)?;
        let tokens = logits.shape.rows();
        let chosen = cx.tensor("chosen_experts", [tokens, k], DType::I32)?;
        let weights = cx.tensor("expert_weights", [tokens, k], DType::F32)?;
        let (router, bias, tokens) = (self.router, self.bias, self.tokens(cx));
        cx.run(Route { router, logits, bias, tokens, chosen, weights })?;
        let kept = match self.capacity.filter(|_| cx.mode().trains()) {
            Some(capacity) => self.within(cx, capacity, [chosen, weights], samples)?,
            None => chosen,
        };
        let (own, weights) = (self.share.of_all(kept), self.share.of_all(weights));
        Ok(Routed { logits, chosen, kept, own, weights })
    }

    /// The tokens of this rank among the tokens of the microbatch.
    fn tokens(&self, cx: &StepContext<'_>) -> SampleTokens {
        let share = self.whole.as_ref().map_or(SequenceShare::WHOLE, |whole| whole.share);
        // Tokens that are generated are of no sample.
        SampleTokens { samples: BatchSizes::of(cx).samples.max(1), share }
    }

    /// The choices that a capacity leaves. It bounds an expert's tokens of the whole microbatch, also if ranks divide samples.
    fn within(
        &self,
        cx: &mut StepContext<'_>,
        capacity: Capacity,
        [chosen, weights]: [Tensor; 2],
        Samples { real, .. }: Samples,
    ) -> Result<Tensor> {
        let (experts, samples) = (self.weight.weight.shape.rows(), BatchSizes::of(cx).samples);
        let kept = cx.tensor("kept_experts", chosen.shape, DType::I32)?;
        let weights = (capacity.keeps == Keeps::HighestWeights).then_some(weights);
        let Some(whole) = &self.whole else {
            let capacity = capacity.choices(chosen.elements(), experts);
            cx.run(LimitLoad { chosen, weights, real, experts, capacity, kept })?;
            return Ok(kept);
        };
        let all_chosen = whole.gather(cx, "chosen_of_samples", chosen, samples)?;
        let all_weights = match weights {
            Some(weights) => Some(whole.gather(cx, "weights_of_samples", weights, samples)?),
            None => None,
        };
        let rows = |tensor: Tensor| tensor.reshape([tensor.shape.rows(), tensor.shape.last()]);
        let (chosen, weights, capacity) =
            (rows(all_chosen), all_weights.map(rows), capacity.choices(all_chosen.elements(), experts));
        let all_kept = cx.tensor("kept_of_samples", chosen.shape, DType::I32)?;
        cx.run(LimitLoad { chosen, weights, real, experts, capacity, kept: all_kept })?;
        whole.take(cx, all_kept, kept, samples)?;
        Ok(kept)
    }

    /// The gradient of `input` by way of the choice, `(tokens, hidden)` in f32, from `grad_weights`, that of
    /// [`Routed::weights`]. Also computes the gradient of the parameter, and adds up the router's losses and loads. A
    /// forward may run twice, so it is done here.
    pub(super) fn backward(
        &self,
        cx: &mut StepContext<'_>,
        input: Tensor,
        routed: &Routed,
        grad_weights: Tensor,
        samples: Samples,
    ) -> Result<Tensor> {
        let &Routed { logits, chosen, kept, .. } = routed;
        let (tokens, weight, real) = (logits.shape.rows(), self.weight.weight, samples.real);
        if let Some(load) = self.load {
            cx.run(CountLoad {
                chosen: kept,
                tokens: self.tokens(cx),
                real,
                position_ids: None,
                load,
                accumulate: true,
            })?;
        }
        let (balance, z_loss) = (self.balance(cx, chosen, samples)?, self.z_loss(cx, tokens)?);
        let grad_weights = self.share.all_of(cx, "all_grad_expert_weights", grad_weights)?;
        let grad_logits = cx.tensor("grad_router_logits", logits.shape, DType::F32)?;
        let (router, control, adds_gradient) = (self.router, self.control, self.adds_gradient);
        let op = RouteBackward {
            router,
            logits,
            chosen,
            grad_weights,
            balance,
            z_loss,
            tokens: self.tokens(cx),
            real,
            control,
            adds_gradient,
            grad_logits,
        };
        cx.run(op)?;
        if let (Some(Balance { losses, .. }), Some((_, total))) = (balance, self.balance) {
            cx.run(SumInto { input: losses, total, accumulate: true })?;
        }
        if let (Some(ZLoss { losses, .. }), Some((_, total))) = (z_loss, self.z_loss) {
            cx.run(SumInto { input: losses, total, accumulate: true })?;
        }
        let grad_logits = self.share.of_all(grad_logits);
        if let Some(grad) = self.weight.grad {
            let exact = in_f32(cx, input)?;
            cx.run(Gemm::wgrad(grad_logits, exact, grad, adds_to_gradients(cx)))?;
        }
        if let Some(grad_bias) = self.logit_bias.and_then(|bias| bias.grad) {
            cx.run(BiasGrad { grad_output: grad_logits, grad_bias, accumulate: adds_to_gradients(cx) })?;
        }
        let grad_input = cx.tensor("grad_router_input", [input.shape.rows(), weight.shape.last()], DType::F32)?;
        cx.run(Gemm::dgrad(grad_logits, weight, grad_input, Epilogue::None))?;
        Ok(grad_input)
    }

    fn balance(&self, cx: &mut StepContext<'_>, chosen: Tensor, samples: Samples) -> Result<Option<Balance>> {
        let Some((BalanceLoss { multiplier, over }, _)) = self.balance else { return Ok(None) };
        let (here, sizes) = (chosen.shape.rows(), BatchSizes::of(cx));
        let tokens = here * self.tokens(cx).share.ranks;
        let (groups, documents) = match (over, samples.apart()) {
            (BalanceGroup::Microbatch | BalanceGroup::GlobalBatch, _) => (1, None),
            (BalanceGroup::Sequence, None) => (sizes.samples, None),
            (BalanceGroup::Sequence, Some(documents)) => (tokens, Some(documents.position_ids)),
        };
        let load = cx.tensor("expert_load", [groups, self.weight.weight.shape.rows()], DType::F32)?;
        let loads = match (over, self.load) {
            // This microbatch has been counted, like those before it.
            (BalanceGroup::GlobalBatch, Some(of_step)) => {
                cx.run(Copy { input: of_step, output: load })?;
                if let Some(ranks) = &self.load_ranks {
                    cx.run(Collective::in_place(CollectiveKind::AllReduceSum, ranks.clone(), load))?;
                }
                CountedLoads::OfStep
            }
            _ => {
                // Groups are about whole samples.
                let mut all = chosen;
                if let Some(whole) = &self.whole {
                    all = whole.gather(cx, "chosen_of_samples", chosen, sizes.samples)?;
                }
                let (chosen, real) = (all.reshape([tokens, chosen.shape.last()]), samples.real);
                let all = SampleTokens::whole(sizes.samples);
                cx.run(CountLoad { chosen, tokens: all, real, position_ids: documents, load, accumulate: false })?;
                CountedLoads::OfGroups
            }
        };
        let mut position_ids = documents;
        if let (Some(whole), Some(documents)) = (&self.whole, documents) {
            let positions =
                cx.tensor("positions_in_documents", [sizes.samples, sizes.tokens_per_sample], DType::I32)?;
            whole.take(cx, documents, positions, sizes.samples)?;
            position_ids = Some(positions);
        }
        let losses = cx.tensor("balance_losses", [here], DType::F32)?;
        Ok(Some(Balance { load, loads, position_ids, multiplier: multiplier as f32, losses }))
    }

    fn z_loss(&self, cx: &mut StepContext<'_>, tokens: usize) -> Result<Option<ZLoss>> {
        let Some((multiplier, _)) = self.z_loss else { return Ok(None) };
        let losses = cx.tensor("router_z_losses", [tokens], DType::F32)?;
        Ok(Some(ZLoss { multiplier, losses }))
    }
}

/// The same values in f32.
fn in_f32(cx: &mut StepContext<'_>, input: Tensor) -> Result<Tensor> {
    if input.dtype == DType::F32 {
        return Ok(input);
    }
    let output = cx.tensor("normed_f32", input.shape, DType::F32)?;
    cx.run(Copy { input, output })?;
    Ok(output)
}
