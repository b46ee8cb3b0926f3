//! Losses of pairs, and of answers with a label, against their definition in f64, and the weights of their targets against
//! differences.

use crate::common::{Bench, assert_close, checked_bench, finite_differences, numbers};
use device::DType::F32;
use device::ops::*;

/// Tokens of a sample.
const TOKENS: usize = 12;

/// The places behind the answers of each sample's pairs: two pairs, one that ends with the sample, none.
const PLACES: [[[usize; 2]; 2]; 3] = [[[3, 5], [9, 11]], [[8, 12], [0, 0]], [[0, 0], [0, 0]]];

/// The log-probabilities of the answers under the reference.
const REFERENCE: [f64; 2] = [-2.5, -3.25];

/// The same of answers with a label: a desirable one, an undesirable one, and the latter first.
const LABELLED: [[[usize; 2]; 2]; 3] = [[[5, 5], [5, 11]], [[0, 7], [12, 12]], [[0, 0], [0, 0]]];

/// The mean reward of mismatched answers, from their sum and the control block's factor.
const MISMATCHED: [f64; 2] = [3.0, 0.25];

fn places(preference: Preference) -> [[[usize; 2]; 2]; 3] {
    if matches!(preference, Preference::Kto { .. }) { LABELLED } else { PLACES }
}

/// The results of all pairs, from the losses of all targets.
fn truth(losses: &[f64], targets: &[i32], preference: Preference) -> Vec<[f64; 6]> {
    let beta = f64::from(preference.beta());
    let log_sigmoid = |x: f64| x.min(0.0) - (1.0 + (-x.abs()).exp()).ln();
    let of_sample = |(sample, pairs): (usize, &[[usize; 2]; 2])| {
        let mut begin = 0;
        let of_pair = |&[middle, end]: &[usize; 2]| {
            if end == 0 {
                return [0.0; 6];
            }
            let answers = [begin..middle, middle..end].map(|of| sample * TOKENS + of.start..sample * TOKENS + of.end);
            begin = end;
            let logps = answers.clone().map(|of| -losses[of].iter().sum::<f64>());
            let is_there = answers.clone().map(|of| f64::from(u8::from(!of.is_empty())));
            let ratios = [0, 1].map(|at| logps[at] - REFERENCE[at] * is_there[at]);
            let counts = answers.map(|of| targets[of].iter().filter(|&&target| target >= 0).count() as f64);
            let loss = match preference {
                Preference::Sigmoid { label_smoothing, .. } => {
                    let (s, x) = (f64::from(label_smoothing), beta * (ratios[0] - ratios[1]));
                    -(1.0 - s) * log_sigmoid(x) - s * log_sigmoid(-x)
                }
                Preference::Ipo { .. } => (ratios[0] / counts[0] - ratios[1] / counts[1] - 0.5 / beta).powi(2),
                Preference::Kto { desirable, undesirable, .. } => {
                    let kl = MISMATCHED[0] * MISMATCHED[1];
                    let of_label = |weight: f32, x: f64| f64::from(weight) * (1.0 - log_sigmoid(x).exp());
                    let losses =
                        [of_label(desirable, beta * ratios[0] - kl), of_label(undesirable, kl - beta * ratios[1])];
                    losses[0] * is_there[0] + losses[1] * is_there[1]
                }
            };
            let is_right = match preference {
                Preference::Kto { .. } => is_there[0],
                _ => f64::from(u8::from(ratios[0] > ratios[1])),
            };
            [loss, beta * ratios[0], beta * ratios[1], is_right, logps[0], logps[1]]
        };
        pairs.iter().map(of_pair).collect::<Vec<_>>()
    };
    places(preference).iter().enumerate().flat_map(of_sample).collect()
}

fn check(t: &Bench, preference: Preference) {
    let samples = PLACES.len();
    // A target without a loss in each answer, and outside of pairs.
    let targets: Vec<i32> = (0..samples * TOKENS).map(|at| if at % 3 == 0 { -1 } else { 7 }).collect();
    let numbers = numbers(1, samples * TOKENS, F32);
    let losses: Vec<f64> = numbers.iter().zip(&targets).map(|(x, &of)| if of < 0 { 0.0 } else { x.abs() }).collect();
    // The reference of an answer without tokens is 0.
    let references = |begin: usize, [middle, end]: [usize; 2]| {
        let is_there = [middle > begin, end > middle];
        [0, 1].map(|at| if is_there[at] { REFERENCE[at] } else { 0.0 })
    };
    let of_sample = |of: &[[usize; 2]; 2]| [references(0, of[0]), references(of[0][1], of[1])];
    let of_pairs: Vec<[f64; 2]> = places(preference).iter().flat_map(of_sample).collect();
    let pair = |(&[middle, end], logps): (&[usize; 2], &[f64; 2])| {
        let [chosen, rejected] = logps.map(|logp| (logp as f32).to_bits() as i32);
        [middle as i32, end as i32, chosen, rejected]
    };
    let pairs: Vec<i32> = places(preference).iter().flatten().zip(&of_pairs).flat_map(pair).collect();
    // Apart, as results of the reference model.
    let apart: Vec<f64> =
        of_pairs.iter().flat_map(|[chosen, rejected]| [9.0, 9.0, 9.0, 9.0, *chosen, *rejected]).collect();
    let without: Vec<i32> = pairs.chunks(4).flat_map(|pair| [pair[0], pair[1], 7, 7]).collect();
    let expected = truth(&losses, &targets, preference);
    let targets_t = t.ints(&[samples, TOKENS], &targets);
    for (trains, are_apart) in [(false, false), (true, false), (true, true)] {
        let pairs = t.ints(&[samples, 8], if are_apart { &without } else { &pairs });
        let references = are_apart.then(|| t.put(&[samples, 2, PairLoss::RESULTS], F32, &apart));
        let mismatched = matches!(preference, Preference::Kto { .. }).then(|| {
            let control = Control { grad_scale: MISMATCHED[1] as f32, inverse_loss_scale: 1.0, ..Control::default() };
            MismatchedRewards { sum: t.put(&[1], F32, &MISMATCHED[..1]), control: t.block(&control) }
        });
        let results = t.empty(&[samples, 2, PairLoss::RESULTS], F32);
        let weights = trains.then(|| t.empty(&[samples, TOKENS], F32));
        let of_targets = t.put(&[samples, TOKENS], F32, &losses);
        t.run(PairLoss {
            losses: of_targets,
            targets: targets_t,
            pairs,
            references,
            mismatched,
            preference,
            results,
            weights,
        });
        assert_close("results", F32, &t.get(&results), expected.as_flattened());
        let Some(weights) = weights else { continue };
        let loss = |losses: &[f64]| vec![truth(losses, &targets, preference).iter().map(|of| of[0]).sum()];
        let slopes = finite_differences(&losses, &[1.0], loss);
        assert_close("weights", F32, &t.get(&weights), &slopes);
    }
}

const KINDS: [Preference; 5] = [
    Preference::Sigmoid { beta: 0.5, label_smoothing: 0.0 },
    Preference::Sigmoid { beta: 0.5, label_smoothing: 0.25 },
    Preference::Sigmoid { beta: 90.0, label_smoothing: 0.0 },
    Preference::Ipo { beta: 0.25 },
    Preference::Kto { beta: 0.5, desirable: 1.0, undesirable: 1.5 },
];

#[test]
fn losses_of_pairs_and_the_weights_of_their_targets_are_those_of_the_definition() {
    KINDS.into_iter().for_each(|preference| check(&checked_bench(), preference));
}
