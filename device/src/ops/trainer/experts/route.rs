//! The choice of each token's experts, and its gradient.

use crate::ops::{
    Accesses, Control, Operation, Visit, ZLoss, ensure, ensure_dtype, ensure_elements, ensure_shape, visit_all,
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

/// How a router chooses and weighs experts. All of it is in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// From logits to scores.
    pub score: Score,
    /// A token's weights are divided by their sum.
    pub normalise: bool,
    /// The factor of all weights.
    pub scale: f32,
    /// For benchmarks: tokens take experts in turn, whatever their scores.
    pub forces_balance: bool,
}

/// Chooses the `k` experts with the highest scores for each token, the highest first; of equal ones that with the lowest
/// number. A token's weights are the scores of its experts, without `bias`. A score that is NaN counts as minus infinity
/// for the choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Scores and weights.
    pub router: Router,
    /// `(tokens, experts)`, f32.
    pub logits: Tensor,
    /// `(experts)`, f32: added to scores for the choice alone (Wang et al., 2024).
    pub bias: Option<Tensor>,
    /// `(tokens, k)`, i32, written.
    pub chosen: Tensor,
    /// `(tokens, k)`, f32, written.
    pub weights: Tensor,
}

impl Operation for Route {
    const NAME: &'static str = "route";

    fn check(&self) -> Result<()> {
        check_choice(Self::NAME, &self.logits, &self.chosen, ("weights", &self.weights))?;
        let Some(bias) = &self.bias else { return Ok(()) };
        ensure_dtype(Self::NAME, "bias", bias, DType::F32)?;
        ensure_elements(Self::NAME, "bias", bias, self.logits.shape.last())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.logits], [self.chosen, self.weights]).reads(self.bias)
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.logits, &mut self.bias, &mut self.chosen, &mut self.weights]);
    }
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
    ensure_dtype(op, "position_ids", position_ids, DType::I32)?;
    ensure_elements(op, "position_ids", position_ids, tokens)?;
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
    /// Of the [`CountLoad`](super::CountLoad), if groups are documents.
    pub position_ids: Option<Tensor>,
    /// The factor of the loss.
    pub multiplier: f32,
    /// `(tokens)`, f32, written: the loss of each token.
    pub losses: Tensor,
}

impl Visit for Balance {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        visit_all(visit, [&mut self.load, &mut self.position_ids, &mut self.losses]);
    }
}

/// The gradient of [`Route`] with respect to its logits, and the router's own losses with theirs. The choice has no
/// gradient. The z-loss is that of the router's logits (Zoph et al., 2022).
#[derive(Clone, Debug, PartialEq)]
pub struct RouteBackward {
    /// Of the forward.
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
    /// `(sequences)`, i32: the tokens that each sequence begins with and that are no padding. Only they have losses.
    /// `None` if there is no padding. Groups are then all tokens, or sequences.
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
        check_real(Self::NAME, self.real.as_ref(), tokens)?;
        ensure_dtype(Self::NAME, "grad_logits", &self.grad_logits, DType::F32)?;
        ensure_elements(Self::NAME, "grad_logits", &self.grad_logits, tokens * experts)?;
        ensure_dtype(Self::NAME, "control", &self.control, DType::U8)?;
        ensure_elements(Self::NAME, "control", &self.control, size_of::<Control>())?;
        ZLoss::check(self.z_loss, Self::NAME, tokens)?;
        let Some(Balance { load, position_ids, losses, .. }) = &self.balance else { return Ok(()) };
        ensure_dtype(Self::NAME, "load", load, DType::F32)?;
        let groups = load.shape.rows();
        ensure_shape(Self::NAME, "load", load, &[groups, experts])?;
        ensure(Self::NAME, groups > 0 && tokens.is_multiple_of(groups), || {
            format!("{tokens} tokens cannot be in {groups} groups of equal size")
        })?;
        let sequences = self.real.map_or(groups, |real| real.elements());
        check_documents(Self::NAME, position_ids.as_ref(), tokens, groups)?;
        ensure(Self::NAME, position_ids.is_some() || groups == 1 || groups == sequences, || {
            format!("{groups} groups of {sequences} sequences with padding, needs 1 or {sequences}")
        })?;
        ensure_dtype(Self::NAME, "losses", losses, DType::F32)?;
        ensure_elements(Self::NAME, "losses", losses, tokens)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.logits, self.chosen, self.grad_weights, self.control], [self.grad_logits])
            .reads(self.balance.map(|balance| balance.load))
            .reads(self.balance.and_then(|balance| balance.position_ids))
            .reads(self.real)
            .writes(self.balance.map(|balance| balance.losses))
            .writes(self.z_loss.map(|z_loss| z_loss.losses))
    }

    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor)) {
        let RouteBackward { logits, chosen, grad_weights, balance, z_loss, real, control, grad_logits, .. } = self;
        visit_all(visit, [logits, chosen, grad_weights, balance, z_loss, real, control, grad_logits]);
    }
}
