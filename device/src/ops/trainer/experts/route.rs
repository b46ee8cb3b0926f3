//! The choice of each token's experts, and its gradient.

mod host;

use super::kernels::{PlacesArgs, at_most};
use crate::cuda::{GpuProperties, Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{
    Accesses, Control, HasTensors, Operation, SequenceShare, ZLoss, ensure, ensure_dtype, ensure_shape, ensure_values,
    tensors,
};
use crate::{DType, Result, Tensor};

/// The function from a token's logits to the scores of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// The logistic function of each logit (DeepSeek-V3, 2024).
    Sigmoid,
}

/// A group's score, from those of its experts with their biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The highest (DeepSeek-V2, 2024).
    Highest,
    /// The sum of the two highest (DeepSeek-V3, 2024).
    TwoHighest,
}

/// Groups of neighbouring experts, of equal sizes. A token chooses from the groups with the highest scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// The number of groups.
    pub count: usize,
    /// The groups that a token chooses from.
    pub per_token: usize,
    /// The groups' scores.
    pub score: GroupScore,
}

/// How a router chooses and weighs experts. All of it is in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// From logits to scores.
    pub score: Score,
    /// The groups of experts; `None`: a token chooses from all.
    pub groups: Option<ExpertGroups>,
    /// A token's weights are divided by their sum.
    pub normalise: bool,
    /// The factor of all weights.
    pub scale: f32,
    /// For benchmarks: tokens take experts in turn, by their numbers in the microbatch, whatever their scores.
    pub forces_balance: bool,
}

/// The tokens here among those of whole samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTokens {
    /// Samples; they have equally many tokens.
    pub samples: usize,
    /// The tokens of a sample that are here.
    pub share: SequenceShare,
}

/// The place of a token in whole samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceInSample {
    pub(crate) sample: usize,
    /// In the sample.
    pub(crate) position: usize,
}

impl SampleTokens {
    /// All tokens of so many samples.
    pub fn whole(samples: usize) -> SampleTokens {
        SampleTokens { samples, share: SequenceShare::WHOLE }
    }

    /// The place of one of `tokens` tokens here.
    pub(crate) fn place(self, token: usize, tokens: usize) -> PlaceInSample {
        let here = tokens / self.samples;
        PlaceInSample { sample: token / here, position: self.share.position(token % here, here) }
    }

    /// The number of one of `tokens` tokens here among those of whole samples.
    pub(crate) fn number(self, token: usize, tokens: usize) -> usize {
        let PlaceInSample { sample, position } = self.place(token, tokens);
        sample * (tokens / self.samples) * self.share.ranks + position
    }

    pub(super) fn check(self, op: &'static str, tokens: usize, real: Option<&Tensor>) -> Result<()> {
        let SampleTokens { samples, share: SequenceShare { rank, ranks } } = self;
        let even = ranks == 1 || (tokens / samples.max(1)).is_multiple_of(2);
        ensure(op, samples > 0 && tokens.is_multiple_of(samples) && rank < ranks && even, || {
            format!("{tokens} tokens cannot be those of rank {rank} of {ranks} in {samples} samples of equal length")
        })?;
        let Some(real) = real else { return Ok(()) };
        ensure_values(op, "real", real, DType::I32, samples)
    }
}

/// Chooses the `k` experts with the highest scores for each token, the highest first; of equal ones that with the lowest
/// number. With groups these are the experts of some groups. A token's weights are the scores of its experts, without
/// `bias`. A score that is NaN counts as minus infinity for the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Scores and weights.
    pub router: Router,
    /// `(tokens, experts)`, f32.
    pub logits: Tensor,
    /// `(experts)`, f32: added to scores for the choice alone (Wang et al., 2024).
    pub bias: Option<Tensor>,
    /// The tokens.
    pub tokens: SampleTokens,
    /// `(tokens, k)`, i32, written.
    pub chosen: Tensor,
    /// `(tokens, k)`, f32, written.
    pub weights: Tensor,
}

impl Operation for Route {
    const NAME: &'static str = "route";

    fn check(&self) -> Result<()> {
        check_choice(Self::NAME, &self.logits, &self.chosen, ("weights", &self.weights))?;
        self.tokens.check(Self::NAME, self.logits.shape.rows(), None)?;
        let (experts, k) = (self.logits.shape.last(), self.chosen.shape.last());
        if let Some(ExpertGroups { count, per_token, .. }) = self.router.groups {
            let size = experts / count.max(1);
            let fits = (1..=count).contains(&per_token) && experts.is_multiple_of(count) && size > 1;
            ensure(Self::NAME, fits && k <= per_token * size, || {
                format!("{k} of {experts} experts cannot be chosen from {per_token} of {count} groups")
            })?;
        }
        let Some(bias) = &self.bias else { return Ok(()) };
        ensure_values(Self::NAME, "bias", bias, DType::F32, experts)
    }

    tensors! { read logits, bias; write chosen, weights }
}

fn check_choice(op: &'static str, logits: &Tensor, chosen: &Tensor, weights: (&str, &Tensor)) -> Result<()> {
    let (tokens, experts, k) = (logits.shape.rows(), logits.shape.last(), chosen.shape.last());
    ensure_dtype(op, "logits", logits, DType::F32)?;
    ensure_dtype(op, "chosen", chosen, DType::I32)?;
    ensure_shape(op, "chosen", chosen, &[tokens, k])?;
    ensure_dtype(op, weights.0, weights.1, DType::F32)?;
    ensure_shape(op, weights.0, weights.1, &[tokens, k])?;
    ensure(op, (1..=experts).contains(&k), || format!("{k} of {experts} experts cannot be chosen"))
}

/// Fails unless `real` has a number for each of some sequences of equal length.
pub(super) fn check_real(op: &'static str, real: Option<&Tensor>, tokens: usize) -> Result<()> {
    let Some(real) = real else { return Ok(()) };
    ensure_dtype(op, "real", real, DType::I32)?;
    ensure(op, real.elements() > 0 && tokens.is_multiple_of(real.elements()), || {
        format!("{tokens} tokens cannot be in {} sequences of equal length", real.elements())
    })
}

/// Fails unless `position_ids`, if there are any, has a number for each token, and so many `groups` are one for each.
pub(super) fn check_documents(
    op: &'static str,
    position_ids: Option<&Tensor>,
    tokens: usize,
    groups: usize,
) -> Result<()> {
    let Some(position_ids) = position_ids else { return Ok(()) };
    ensure_values(op, "position_ids", position_ids, DType::I32, tokens)?;
    ensure(op, groups == tokens, || format!("{groups} groups for documents, needs a row for each of {tokens} tokens"))
}

/// The balance loss of a router (Fedus et al., 2021). Tokens are in groups: the microbatch, its sequences, or documents
/// of any size. With `E` experts, a group's loss is `multiplier * E * sum over experts of f p`. Here `f` is the expert's
/// share of the group's load, and `p` the mean over the group's tokens of its score, divided by the sum of the token's
/// scores. The loss is the mean over the step's microbatches of the mean over groups, or the mean
/// over the step's documents; each token has a part of it. See [`RouteBackward::control`] for one more factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// `(groups, experts)`, f32: the pairs of each expert; see [`CountLoad`](super::CountLoad).
    pub load: Tensor,
    /// The tokens that were counted.
    pub loads: CountedLoads,
    /// `(tokens)`, i32: the positions of the tokens here in their documents, if groups are documents.
    pub position_ids: Option<Tensor>,
    /// The factor of the loss.
    pub multiplier: f32,
    /// `(tokens)`, f32, written: the loss of each token.
    pub losses: Tensor,
}

/// The tokens that the loads of a balance loss count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedLoads {
    /// The loads of the groups. These are whole samples, which have a pair with each of their experts.
    OfGroups,
    /// The loads of the step so far. There is one group: the tokens here.
    OfStep,
}

impl HasTensors for Balance {
    tensors! { load, position_ids, losses }
}

/// The gradient of [`Route`] with respect to its logits, and the router's own losses with theirs. The choice has no
/// gradient. The z-loss is that of the router's logits (Zoph et al., 2022).
#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackward {
    /// The forward's router.
    pub router: Router,
    /// `(tokens, experts)`, f32.
    pub logits: Tensor,
    /// `(tokens, k)`, i32.
    pub chosen: Tensor,
    /// `(tokens, k)`, f32: gradient of the weights.
    pub grad_weights: Tensor,
    /// The balance loss, if there is one.
    pub balance: Option<Balance>,
    /// The z-loss, if there is one: the mean over the step's tokens of `multiplier * logsumexp(logits)^2`.
    pub z_loss: Option<ZLoss>,
    /// The tokens.
    pub tokens: SampleTokens,
    /// `(samples)`, i32: the tokens that each whole sample begins with and that are no padding. Only they have losses.
    /// `None` if there is no padding.
    pub real: Option<Tensor>,
    /// u8, a [`Control`] with the numbers of tokens, documents and microbatches. The step's loss is a sum divided by its
    /// targets, and these losses are other means. So both are multiplied by the number of targets. Like every loss
    /// their gradients have the factor `grad_scale`.
    pub control: Tensor,
    /// The gradients of both losses are added. Of ranks that compute parts of one gradient, one adds them.
    pub adds_gradient: bool,
    /// `(tokens, experts)`, f32, written.
    pub grad_logits: Tensor,
}

impl Operation for RouteBackward {
    const NAME: &'static str = "route_backward";

    fn check(&self) -> Result<()> {
        check_choice(Self::NAME, &self.logits, &self.chosen, ("grad_weights", &self.grad_weights))?;
        let (tokens, experts) = (self.logits.shape.rows(), self.logits.shape.last());
        self.tokens.check(Self::NAME, tokens, self.real.as_ref())?;
        ensure_values(Self::NAME, "grad_logits", &self.grad_logits, DType::F32, tokens * experts)?;
        ensure_values(Self::NAME, "control", &self.control, DType::U8, size_of::<Control>())?;
        ZLoss::check(self.z_loss, Self::NAME, tokens)?;
        let Some(Balance { load, loads, position_ids, losses, .. }) = &self.balance else { return Ok(()) };
        ensure_dtype(Self::NAME, "load", load, DType::F32)?;
        let (groups, samples) = (load.shape.rows(), self.tokens.samples);
        ensure_shape(Self::NAME, "load", load, &[groups, experts])?;
        let whole = match position_ids {
            Some(position_ids) => {
                ensure_values(Self::NAME, "position_ids", position_ids, DType::I32, tokens)?;
                tokens * self.tokens.share.ranks
            }
            None => samples,
        };
        ensure(Self::NAME, groups == whole || position_ids.is_none() && groups == 1, || {
            format!("{groups} groups of {samples} samples, needs 1, or {whole}")
        })?;
        ensure(Self::NAME, groups == 1 || *loads == CountedLoads::OfGroups, || {
            format!("{groups} groups cannot share the loads of a step")
        })?;
        ensure_values(Self::NAME, "losses", losses, DType::F32, tokens)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.logits, self.chosen, self.grad_weights, self.control], [self.grad_logits])
            .reads(self.balance.map(|balance| balance.load))
            .reads(self.balance.and_then(|balance| balance.position_ids))
            .reads(self.real)
            .writes(self.balance.map(|balance| balance.losses))
            .writes(self.z_loss.map(|z_loss| z_loss.losses))
    }

    tensors! { logits, chosen, grad_weights, balance, z_loss, real, control, grad_logits }
}

kernel_struct! {
    /// `Route` of `kernels/experts/route.cu`; 0 is the null pointer.
    RouteArgs {
        u64: logits, bias, chosen, weights;
        u32: tokens, experts, k, sigmoid, normalise, forces_balance, groups, of_groups, two_highest, reserved;
        f32: scale;
        PlacesArgs: places;
    }
}

kernel_struct! {
    /// `RouteBackward` of `kernels/experts/route.cu`; 0 is the null pointer.
    RouteBackwardArgs {
        u64: logits, chosen, grad_weights, load, balance_losses, z_losses, real, position_ids, control, grad_logits;
        u32: tokens, experts, k, groups, samples, of_step;
        PlacesArgs: places;
        u32: sigmoid, normalise, adds_gradient;
        f32: scale, balance_multiplier, z_multiplier;
        u32: reserved;
    }
}

/// A warp has a thread for each.
const MOST_GROUPS: usize = 32;

/// Threads of a block: a warp takes a token.
const THREADS: usize = 256;

fn grid(tokens: usize) -> Grid {
    Grid::line(tokens.div_ceil(THREADS / 32), THREADS)
}

/// The kernel whose threads have enough experts each, a power of two.
fn kernel(name: &str, experts: usize) -> String {
    format!("{name}_{}", experts.div_ceil(32).next_power_of_two())
}

impl KernelOperation for Route {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/route.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, experts) = (self.logits.shape.rows(), self.logits.shape.last());
        let block = fill! {
            RouteArgs: self.{logits, bias, chosen, weights}; tokens, experts, k: self.chosen.shape.last(),
            sigmoid: self.router.score == Score::Sigmoid, normalise: self.router.normalise,
            forces_balance: self.router.forces_balance,
            groups: self.router.groups.map_or(1, |groups| groups.count as u32),
            of_groups: self.router.groups.map_or(1, |groups| groups.per_token as u32),
            two_highest: self.router.groups.is_some_and(|groups| groups.score == GroupScore::TwoHighest),
            reserved: 0u32, scale: self.router.scale, places: PlacesArgs::new(self.tokens, tokens)
        };
        queue.launch_block(&kernel("route", experts), grid(tokens), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        let groups = self.router.groups.map_or(1, |groups| groups.count);
        ensure(Self::NAME, groups <= MOST_GROUPS, || format!("at most {MOST_GROUPS} groups of experts, not {groups}"))?;
        at_most(Self::NAME, self.logits.shape.last(), self.chosen.shape.last())
    }
}

impl KernelOperation for RouteBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/route.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, experts) = (self.logits.shape.rows(), self.logits.shape.last());
        let k = self.chosen.shape.last();
        let block = fill! {
            RouteBackwardArgs: self.{logits, chosen, grad_weights, real, control, grad_logits, adds_gradient};
            load: self.balance.map(|balance| balance.load), balance_losses: self.balance.map(|balance| balance.losses),
            z_losses: self.z_loss.map(|z_loss| z_loss.losses),
            position_ids: self.balance.and_then(|balance| balance.position_ids), tokens, experts, k,
            groups: self.balance.map_or(1, |balance| balance.load.shape.rows() as u32), samples: self.tokens.samples,
            of_step: self.balance.is_some_and(|balance| balance.loads == CountedLoads::OfStep),
            places: PlacesArgs::new(self.tokens, tokens), sigmoid: self.router.score == Score::Sigmoid,
            normalise: self.router.normalise, scale: self.router.scale,
            balance_multiplier: self.balance.map_or(0.0, |balance| balance.multiplier),
            z_multiplier: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier), reserved: 0u32
        };
        queue.launch_block(&kernel("route_backward", experts), grid(tokens), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        at_most(Self::NAME, self.logits.shape.last(), self.chosen.shape.last())
    }
}
