//! The choice of each token's experts, and its gradient.

use crate::host::parts::{Counted, exp, sigmoid};
use crate::host::{HostKernel, Pool, view};
use crate::ops::{
    Balance, Control, CountedLoads, ExpertGroups, GroupScore, Route, RouteBackward, Router, Score, ZLoss,
};

/// Tokens of one task.
const TOKENS: usize = 64;

/// A token's scores.
fn scores(router: &Router, logits: &[f32], scores: &mut [f32]) {
    match router.score {
        Score::Sigmoid => scores.iter_mut().zip(logits).for_each(|(score, x)| *score = sigmoid(*x)),
        Score::Softmax => {
            let (max, sum) = softmax_parts(logits);
            scores.iter_mut().zip(logits).for_each(|(score, x)| *score = exp(x - max) / sum);
        }
    }
}

/// The largest logit, and the sum of exponentials of the others' distances from it.
fn softmax_parts(logits: &[f32]) -> (f32, f32) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (max, logits.iter().map(|x| exp(x - max)).sum())
}

impl HostKernel for Route {
    fn run(&self, pool: &Pool) {
        let (experts, k) = (self.logits.shape.last(), self.chosen.shape.last());
        let (logits, tokens) = (view::read::<f32>(&self.logits), self.logits.shape.rows());
        let bias = self.bias.as_ref().map(view::read::<f32>);
        let (chosen, weights) = (view::write::<i32>(&self.chosen), view::write::<f32>(&self.weights));
        pool.for_each_chunk_pair((chosen, TOKENS * k), (weights, TOKENS * k), |chunk, chosen, weights| {
            let mut of_token = vec![0.0; experts];
            for (at, (chosen, weights)) in chosen.chunks_mut(k).zip(weights.chunks_mut(k)).enumerate() {
                let token = chunk * TOKENS + at;
                let number = self.tokens.number(token, tokens);
                scores(&self.router, &logits[token * experts..][..experts], &mut of_token);
                match self.router.forces_balance {
                    true => chosen
                        .iter_mut()
                        .enumerate()
                        .for_each(|(j, chosen)| *chosen = ((number * k + j) % experts) as i32),
                    false => choose(keys(&of_token, bias, self.router.groups), chosen),
                }
                weights.iter_mut().zip(chosen).for_each(|(weight, chosen)| *weight = of_token[*chosen as usize]);
                let sum: f32 = if self.router.normalise { weights.iter().sum() } else { 1.0 };
                weights.iter_mut().for_each(|weight| *weight = self.router.scale * (*weight / sum));
            }
        });
    }
}

/// The numbers that experts are chosen by; `None` for those of groups that are not chosen.
fn keys(scores: &[f32], bias: Option<&[f32]>, groups: Option<ExpertGroups>) -> Vec<Option<f32>> {
    let number = |key: f32| if key.is_nan() { f32::NEG_INFINITY } else { key };
    let key = |(expert, score): (usize, &f32)| Some(number(score + bias.map_or(0.0, |bias| bias[expert])));
    let mut keys: Vec<Option<f32>> = scores.iter().enumerate().map(key).collect();
    let Some(ExpertGroups { count, per_token, score }) = groups else { return keys };
    let size = scores.len() / count;
    let of_group = |group: &[Option<f32>]| {
        let mut two = [0; 2];
        choose(group.to_vec(), &mut two);
        let [first, second] = two.map(|expert| group[expert as usize].unwrap_or(f32::NEG_INFINITY));
        Some(match score {
            GroupScore::Highest => first,
            GroupScore::TwoHighest => number(first + second),
        })
    };
    let mut kept = vec![0; per_token];
    choose(keys.chunks(size).map(of_group).collect(), &mut kept);
    let groups = keys.chunks_mut(size).enumerate();
    groups.filter(|(group, _)| !kept.contains(&(*group as i32))).for_each(|(_, keys)| keys.fill(None));
    keys
}

/// The places of the highest keys, the highest first; of equal ones the lowest.
fn choose(mut keys: Vec<Option<f32>>, chosen: &mut [i32]) {
    for chosen in chosen {
        let left = keys.iter().enumerate().filter_map(|(at, key)| Some((at, (*key)?)));
        // Only a higher key takes the place of an earlier one.
        let best = left.reduce(|best, other| if other.1 > best.1 { other } else { best });
        let at = best.map_or(0, |(at, _)| at);
        (*chosen, keys[at]) = (at as i32, None);
    }
}

impl HostKernel for RouteBackward {
    fn run(&self, pool: &Pool) {
        let (experts, k) = (self.logits.shape.last(), self.chosen.shape.last());
        let tokens = self.logits.shape.rows();
        let (logits, chosen) = (view::read::<f32>(&self.logits), view::read::<i32>(&self.chosen));
        let grad_weights = view::read::<f32>(&self.grad_weights);
        let control: Control = view::read_block(&self.control);
        // The number of targets.
        let of_losses = 1.0 / (control.grad_scale * control.inverse_loss_scale);
        let of_gradients = self.adds_gradient.then_some(of_losses * control.grad_scale);
        let counted = Counted::new(self.real.as_ref(), self.tokens, tokens);
        let balance = self.balance.as_ref().map(|balance| Weighed::new(balance, &counted, k, &control));
        let of_z = |token: usize| if counted.counts(token) { 1.0 / control.tokens as f32 } else { 0.0 };
        let of_token = |token: usize| &logits[token * experts..][..experts];
        pool.for_each_chunk(view::write::<f32>(&self.grad_logits), TOKENS * experts, |chunk, grads| {
            let (mut of_experts, mut grad_scores) = (vec![0.0; experts], vec![0.0; experts]);
            for (at, grad) in grads.chunks_mut(experts).enumerate() {
                let token = chunk * TOKENS + at;
                let pairs = token * k..(token + 1) * k;
                scores(&self.router, of_token(token), &mut of_experts);
                grad_scores.fill(0.0);
                through_weights(
                    &self.router,
                    &of_experts,
                    &chosen[pairs.clone()],
                    &grad_weights[pairs],
                    &mut grad_scores,
                );
                if let (Some(balance), Some(factor)) = (&balance, of_gradients) {
                    balance.add_gradient(token, &of_experts, factor, &mut grad_scores);
                }
                match self.router.score {
                    Score::Sigmoid => {
                        let both = grad_scores.iter().zip(&of_experts);
                        grad.iter_mut().zip(both).for_each(|(grad, (ds, s))| *grad = ds * s * (1.0 - s));
                    }
                    Score::Softmax => {
                        let mean: f32 = grad_scores.iter().zip(&of_experts).map(|(ds, s)| ds * s).sum();
                        let both = grad_scores.iter().zip(&of_experts);
                        grad.iter_mut().zip(both).for_each(|(grad, (ds, s))| *grad = s * (ds - mean));
                    }
                }
                if let (Some(z_loss), Some(factor)) = (&self.z_loss, of_gradients) {
                    let (max, sum) = softmax_parts(of_token(token));
                    let factor = factor * of_z(token) * 2.0 * z_loss.multiplier * (max + sum.ln());
                    grad.iter_mut().zip(of_token(token)).for_each(|(grad, x)| *grad += factor * (exp(x - max) / sum));
                }
            }
        });
        if let Some(balance) = &balance {
            pool.for_each_chunk(view::write::<f32>(&balance.of.losses), TOKENS, |chunk, losses| {
                let mut of_experts = vec![0.0; experts];
                for (at, loss) in losses.iter_mut().enumerate() {
                    scores(&self.router, of_token(chunk * TOKENS + at), &mut of_experts);
                    *loss = of_losses * balance.loss(chunk * TOKENS + at, &of_experts);
                }
            });
        }
        if let Some(ZLoss { multiplier, losses }) = &self.z_loss {
            pool.for_each_chunk(view::write::<f32>(losses), TOKENS, |chunk, losses| {
                for (at, loss) in losses.iter_mut().enumerate() {
                    let (max, sum) = softmax_parts(of_token(chunk * TOKENS + at));
                    let log_sum = max + sum.ln();
                    *loss = of_losses * of_z(chunk * TOKENS + at) * multiplier * log_sum * log_sum;
                }
            });
        }
    }
}

/// Adds the gradient of a token's scores by way of its weights.
fn through_weights(router: &Router, scores: &[f32], chosen: &[i32], grad_weights: &[f32], grad_scores: &mut [f32]) {
    let score = |chosen: &i32| scores[*chosen as usize];
    let (mut sum, mut mean) = (1.0, 0.0);
    if router.normalise {
        sum = chosen.iter().map(score).sum();
        mean = chosen.iter().zip(grad_weights).map(|(chosen, grad)| grad * (score(chosen) / sum)).sum();
    }
    for (chosen, grad) in chosen.iter().zip(grad_weights) {
        grad_scores[*chosen as usize] += router.scale * (grad - mean) / sum;
    }
}

/// A [`Balance`] with its loads in memory.
struct Weighed<'b> {
    of: Balance,
    load: &'b [f32],
    positions: Option<&'b [i32]>,
    counted: &'b Counted<'b>,
    /// The experts of a token.
    per_token: usize,
    control: &'b Control,
}

impl Weighed<'_> {
    fn new<'b>(of: &'b Balance, counted: &'b Counted<'b>, per_token: usize, control: &'b Control) -> Weighed<'b> {
        let positions = of.position_ids.as_ref().map(view::read::<i32>);
        Weighed { of: *of, load: view::read::<f32>(&of.load), positions, counted, per_token, control }
    }

    /// The loads of a token's group, and the factor of `load * p`.
    fn load(&self, token: usize, experts: usize) -> (&[f32], f32) {
        let groups = self.load.len() / experts;
        let group = match self.positions {
            Some(positions) => self.counted.first_of_document(positions, token),
            None if groups == 1 => 0,
            None => self.counted.sample(token),
        };
        let load = &self.load[group * experts..][..experts];
        let total: f32 = load.iter().sum();
        // The groups of the step, and the tokens of this one.
        let groups = match self.positions {
            Some(_) => self.control.documents as f32,
            None => (self.control.microbatches as usize * groups) as f32,
        };
        let tokens = match self.of.loads {
            CountedLoads::OfGroups => total / self.per_token as f32,
            CountedLoads::OfStep => self.counted.of_samples(),
        };
        let counts = self.counted.counts(token) && total > 0.0;
        let of_token = if counts { 1.0 / (groups * tokens * total) } else { 0.0 };
        (load, self.of.multiplier * experts as f32 * of_token)
    }

    fn loss(&self, token: usize, scores: &[f32]) -> f32 {
        let sum: f32 = scores.iter().sum();
        let (load, factor) = self.load(token, scores.len());
        factor * scores.iter().zip(load).map(|(score, load)| load * (score / sum)).sum::<f32>()
    }

    fn add_gradient(&self, token: usize, scores: &[f32], of_loss: f32, grad_scores: &mut [f32]) {
        let sum: f32 = scores.iter().sum();
        let (load, factor) = self.load(token, scores.len());
        let mean: f32 = scores.iter().zip(load).map(|(score, load)| load * (score / sum)).sum();
        let factor = of_loss * factor / sum;
        grad_scores.iter_mut().zip(load).for_each(|(grad, load)| *grad += factor * (load - mean));
    }
}
