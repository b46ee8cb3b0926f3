//! Losses of pairs of answers.

use std::ops::Range;

use crate::host::{HostKernel, Pool, view};
use crate::ops::{Control, PairLoss, Preference};

/// `-log sigmoid(x)`.
fn minus_log_sigmoid(x: f32) -> f32 {
    (-x).max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The label of an answer that is alone.
#[derive(Clone, Copy, PartialEq)]
enum Label {
    Desirable,
    Undesirable,
}

/// The loss of a pair, and its derivative by `h`, the difference of both answers' log-ratios, which are means for IPO.
/// `mismatched` is the mean reward of mismatched answers.
fn loss(preference: Preference, h: f32, mismatched: f32, label: Label) -> [f32; 2] {
    match preference {
        Preference::Sigmoid { beta, label_smoothing: s } => {
            let x = beta * h;
            let loss = (1.0 - s) * minus_log_sigmoid(x) + s * minus_log_sigmoid(-x);
            [loss, beta * (s * sigmoid(x) - (1.0 - s) * sigmoid(-x))]
        }
        Preference::Ipo { beta } => {
            let x = h - 0.5 / beta;
            [x * x, 2.0 * x]
        }
        Preference::Kto { beta, desirable, undesirable } => {
            // The answer's ratio is `h`, or `-h` if it is undesirable.
            let (weight, x) = match label {
                Label::Desirable => (desirable, beta * h - mismatched),
                Label::Undesirable => (undesirable, beta * h + mismatched),
            };
            [weight * sigmoid(-x), -weight * beta * sigmoid(x) * sigmoid(-x)]
        }
    }
}

impl HostKernel for PairLoss {
    fn run(&self, pool: &Pool) {
        let [_, tokens, most] = self.sizes();
        let (losses, targets) = (view::read::<f32>(&self.losses), view::read::<i32>(&self.targets));
        let pairs = view::read::<i32>(&self.pairs);
        let references = self.references.as_ref().map(view::read::<f32>);
        let mismatched = self.mismatched.map_or(0.0, |of| {
            let Control { grad_scale, inverse_loss_scale, .. } = view::read_block(&of.control);
            (view::read::<f32>(&of.sum)[0] * (grad_scale * inverse_loss_scale)).max(0.0)
        });
        let of_sample = |sample: usize, results: &mut [f32], mut weights: Option<&mut [f32]>| {
            results.fill(0.0);
            weights.iter_mut().for_each(|weights| weights.fill(0.0));
            let (losses, targets) = (&losses[sample * tokens..][..tokens], &targets[sample * tokens..][..tokens]);
            let pairs = pairs[sample * most * PairLoss::COLUMNS..].chunks(PairLoss::COLUMNS);
            let mut begin = 0;
            for (at, (pair, results)) in pairs.zip(results.chunks_mut(PairLoss::RESULTS)).enumerate() {
                let [middle, end] = [pair[0], pair[1]].map(|place| place.max(0) as usize);
                if end == 0 {
                    break;
                }
                let answers = [begin..middle, middle..end];
                begin = end;
                let log_probability =
                    |of: &Range<usize>| -losses[of.clone()].iter().map(|&loss| f64::from(loss)).sum::<f64>() as f32;
                let [chosen, rejected] = [0, 1].map(|which| log_probability(&answers[which]));
                let [of_chosen, of_rejected] = match references {
                    Some(references) => {
                        let of_pair = &references[(sample * most + at) * PairLoss::RESULTS..];
                        PairLoss::LOG_PROBABILITIES.map(|which| of_pair[which])
                    }
                    None => [2, 3].map(|column| f32::from_bits(pair[column] as u32)),
                };
                let ratios = [chosen - of_chosen, rejected - of_rejected];
                let shares = answers.clone().map(|of| match self.preference {
                    Preference::Sigmoid { .. } | Preference::Kto { .. } => 1.0,
                    Preference::Ipo { .. } => {
                        1.0 / targets[of].iter().filter(|&&target| target >= 0).count().max(1) as f32
                    }
                });
                let label = if answers[1].is_empty() { Label::Desirable } else { Label::Undesirable };
                let h = ratios[0] * shares[0] - ratios[1] * shares[1];
                let [loss, derivative] = loss(self.preference, h, mismatched, label);
                let rewards = ratios.map(|ratio| self.preference.beta() * ratio);
                let is_right = match self.preference {
                    Preference::Kto { .. } => label == Label::Desirable,
                    _ => rewards[0] > rewards[1],
                };
                results.copy_from_slice(&[
                    loss,
                    rewards[0],
                    rewards[1],
                    f32::from(u8::from(is_right)),
                    chosen,
                    rejected,
                ]);
                if let Some(weights) = &mut weights {
                    // A target's loss is its log-probability with the other sign.
                    let [first, second] = answers;
                    weights[first].fill(-derivative * shares[0]);
                    weights[second].fill(derivative * shares[1]);
                }
            }
        };
        let results = (view::write::<f32>(&self.results), most * PairLoss::RESULTS);
        match &self.weights {
            None => pool.for_each_chunk(results.0, results.1, |sample, results| of_sample(sample, results, None)),
            Some(weights) => {
                pool.for_each_chunk_pair(results, (view::write::<f32>(weights), tokens), |sample, results, weights| {
                    of_sample(sample, results, Some(weights));
                });
            }
        }
    }
}
