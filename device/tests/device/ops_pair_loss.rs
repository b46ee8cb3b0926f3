//! Losses of pairs against their definition in f64, and the weights of their targets against differences.

use crate::common::{Bench, assert_close, bench, cuda_bench, finite_differences, numbers};
use device::DType::F32;
use device::ops::*;

/// Tokens of a sample.
const TOKENS: usize = 12;

/// The places behind the answers of each sample's pairs: two pairs, one that ends with the sample, none.
const PLACES: [[[usize; 2]; 2]; 3] = [[[3, 5], [9, 11]], [[8, 12], [0, 0]], [[0, 0], [0, 0]]];

/// The log-probabilities of the answers under the reference.
const REFERENCE: [f64; 2] = [-2.5, -3.25];

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
            let ratios = [logps[0] - REFERENCE[0], logps[1] - REFERENCE[1]];
            let counts = answers.map(|of| targets[of].iter().filter(|&&target| target >= 0).count() as f64);
            let loss = match preference {
                Preference::Sigmoid { label_smoothing, .. } => {
                    let (s, x) = (f64::from(label_smoothing), beta * (ratios[0] - ratios[1]));
                    -(1.0 - s) * log_sigmoid(x) - s * log_sigmoid(-x)
                }
                Preference::Ipo { .. } => (ratios[0] / counts[0] - ratios[1] / counts[1] - 0.5 / beta).powi(2),
            };
            let is_right = f64::from(u8::from(ratios[0] > ratios[1]));
            [loss, beta * ratios[0], beta * ratios[1], is_right, logps[0], logps[1]]
        };
        pairs.iter().map(of_pair).collect::<Vec<_>>()
    };
    PLACES.iter().enumerate().flat_map(of_sample).collect()
}

fn check(t: &Bench, preference: Preference) {
    let samples = PLACES.len();
    // A target without a loss in each answer, and outside of pairs.
    let targets: Vec<i32> = (0..samples * TOKENS).map(|at| if at % 3 == 0 { -1 } else { 7 }).collect();
    let numbers = numbers(1, samples * TOKENS, F32);
    let losses: Vec<f64> = numbers.iter().zip(&targets).map(|(x, &of)| if of < 0 { 0.0 } else { x.abs() }).collect();
    let reference = REFERENCE.map(|logp| (logp as f32).to_bits() as i32);
    let pair = |&[middle, end]: &[usize; 2]| [middle as i32, end as i32, reference[0], reference[1]];
    let pairs: Vec<i32> = PLACES.iter().flatten().flat_map(pair).collect();
    let expected = truth(&losses, &targets, preference);
    let (targets_t, pairs) = (t.ints(&[samples, TOKENS], &targets), t.ints(&[samples, 8], &pairs));
    for trains in [false, true] {
        let results = t.empty(&[samples, 2, PairLoss::RESULTS], F32);
        let weights = trains.then(|| t.empty(&[samples, TOKENS], F32));
        let of_targets = t.put(&[samples, TOKENS], F32, &losses);
        t.run(PairLoss { losses: of_targets, targets: targets_t, pairs, preference, results, weights });
        assert_close("results", F32, &t.get(&results), expected.as_flattened());
        let Some(weights) = weights else { continue };
        let loss = |losses: &[f64]| vec![truth(losses, &targets, preference).iter().map(|of| of[0]).sum()];
        let slopes = finite_differences(&losses, &[1.0], loss);
        assert_close("weights", F32, &t.get(&weights), &slopes);
    }
}

const KINDS: [Preference; 4] = [
    Preference::Sigmoid { beta: 0.5, label_smoothing: 0.0 },
    Preference::Sigmoid { beta: 0.5, label_smoothing: 0.25 },
    Preference::Sigmoid { beta: 90.0, label_smoothing: 0.0 },
    Preference::Ipo { beta: 0.25 },
];

#[test]
fn losses_of_pairs_and_the_weights_of_their_targets_are_those_of_the_definition() {
    KINDS.into_iter().for_each(|preference| check(&bench(2), preference));
}

#[test]
#[ignore = "needs a GPU"]
fn losses_of_pairs_on_a_gpu() {
    KINDS.into_iter().for_each(|preference| check(&cuda_bench(), preference));
}
