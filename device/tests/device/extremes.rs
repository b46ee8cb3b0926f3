//! Numbers far from 1: logits far from zero, norms of almost nothing and of rows of one number, against f64 references.

use crate::common::{Bench, FLOATS, checked_bench, numbers, on_gpu, rounded};
use device::ops::*;
use device::{DType, Tensor};

/// Fails unless every value is as near to the truth as `allowed` says for its index.
fn assert_each_close(what: &str, ours: &[f64], truth: &[f64], allowed: impl Fn(usize) -> f64) {
    assert_eq!(ours.len(), truth.len(), "{what}");
    for (at, (x, y)) in ours.iter().zip(truth).enumerate() {
        // NaN fails too.
        assert!((x - y).abs() <= allowed(at), "{what}: element {at} is {x:e}, not {y:e}");
    }
}

const SCALE: f64 = 0.25;

/// Inputs and outputs of cross-entropy, in f64.
struct Reference {
    /// `(rows, padded vocab)`, as a tensor holds them.
    logits: Vec<f64>,
    targets: Vec<i32>,
    losses: Vec<f64>,
    /// Of the logits, times [`SCALE`]; 0 at padding.
    gradient: Vec<f64>,
    /// The sum of the magnitudes of the gradient's terms: softmax, and 1 at the target.
    magnitudes: Vec<f64>,
}

const VOCAB: usize = 997;
const PADDED: usize = 1024;

impl Reference {
    /// Rows of logits in about [-4, 4) + shift. One row's target stands out, so that its gradient nearly vanishes, and one
    /// row's target does not count.
    fn new(shift: f64, dtype: DType) -> Reference {
        let targets = vec![0, VOCAB as i32 - 1, -1, 512, 511, 3];
        let mut logits = numbers(1, targets.len() * PADDED, dtype);
        logits.iter_mut().for_each(|x| *x = rounded(4.0 * *x + shift, dtype));
        logits[3 * PADDED + 512] = rounded(shift + 14.0, dtype);
        let (mut losses, mut gradient, mut magnitudes) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &target) in logits.chunks(PADDED).zip(&targets) {
            let real = &row[..VOCAB];
            let highest = real.iter().fold(f64::MIN, |a, b| a.max(*b));
            let sum: f64 = real.iter().map(|x| (x - highest).exp()).sum();
            let counts = if target < 0 { 0.0 } else { 1.0 };
            losses.push(if target < 0 { 0.0 } else { sum.ln() - (real[target as usize] - highest) });
            for (c, x) in row.iter().enumerate() {
                let softmax = if c < VOCAB { counts * SCALE * (x - highest).exp() / sum } else { 0.0 };
                let one = if c as i32 == target { SCALE } else { 0.0 };
                gradient.push(softmax - one);
                magnitudes.push(softmax + one);
            }
        }
        Reference { logits, targets, losses, gradient, magnitudes }
    }

    /// Fails unless losses and gradients, of these columns of every row, are near.
    fn assert_close(&self, what: &str, dtype: DType, columns: std::ops::Range<usize>, losses: &[f64], ours: &[f64]) {
        let allowed = |row: usize| 1e-6 + 1e-6 * self.losses[row];
        assert_each_close(&format!("losses {what}"), losses, &self.losses, allowed);
        let of_columns = |values: &[f64]| -> Vec<f64> {
            values.chunks(PADDED).flat_map(|row| row[columns.clone()].to_vec()).collect()
        };
        let (truth, magnitudes) = (of_columns(&self.gradient), of_columns(&self.magnitudes));
        // The sum has a few roundings; in bf16 the result has one, and on a GPU the exponential is good for 1e-5.
        let (stored, computed) = if dtype == DType::Bf16 { (4e-3, 2e-5) } else { (0.0, 2e-6) };
        let allowed = |at: usize| stored * truth[at].abs() + computed * magnitudes[at];
        assert_each_close(&format!("gradients {what}"), ours, &truth, allowed);
    }
}

fn check_shifted_logits(t: &Bench, shift: f64, dtype: DType) {
    let truth = Reference::new(shift, dtype);
    let rows = truth.targets.len();
    let targets = t.ints(&[rows], &truth.targets);
    let control = Some(t.block(&Control { grad_scale: SCALE as f32, ..Control::default() }));
    let (logits, losses) = (t.put(&[rows, PADDED], dtype, &truth.logits), t.empty(&[rows], DType::F32));
    let vocab = VOCAB;
    t.run(CrossEntropy { logits, targets, losses, vocab, soft_cap: None, z_loss: None, weights: None, control });
    let what = format!("of logits shifted by {shift} ({dtype})");
    truth.assert_close(&what, dtype, 0..PADDED, &t.get(&losses), &t.get(&logits));

    for ranks in [2, 4] {
        let width = PADDED / ranks;
        let stats = t.empty(&[ranks, 3, rows], DType::F32);
        let part = |rank| VocabPart { first_token: rank * width, vocab };
        let columns = |rank: usize| rank * width..(rank + 1) * width;
        let first = |rank: usize| -> Tensor {
            let mine: Vec<f64> = truth.logits.chunks(PADDED).flat_map(|row| row[columns(rank)].to_vec()).collect();
            let logits = t.put(&[rows, width], dtype, &mine);
            t.run(CrossEntropyPart { logits, targets, stats: stats.at(rank), part: part(rank), soft_cap: None });
            logits
        };
        let parts: Vec<Tensor> = (0..ranks).map(first).collect();
        for (rank, logits) in parts.into_iter().enumerate() {
            let losses = t.empty(&[rows], DType::F32);
            let part = part(rank);
            t.run(CrossEntropyJoin {
                logits,
                targets,
                stats,
                losses,
                part,
                soft_cap: None,
                z_loss: None,
                weights: None,
                control,
            });
            let what = format!("{what} on rank {rank} of {ranks}");
            truth.assert_close(&what, dtype, columns(rank), &t.get(&losses), &t.get(&logits));
        }
    }
}

#[test]
fn cross_entropy_of_logits_far_from_zero_is_as_precise_as_of_those_near_it() {
    let t = checked_bench();
    for shift in [0.0, -30.0, -100.0, -1000.0, 100.0] {
        FLOATS.into_iter().for_each(|dtype| check_shifted_logits(&t, shift, dtype));
    }
}

/// A norm and its gradient at rows of numbers of a magnitude, and at rows of one number.
fn check_small_norm(t: &Bench, layer: bool, hidden: usize, magnitude: f64, eps: f32, dtype: DType) {
    let rows = 5;
    let mut x = numbers(1, rows * hidden, dtype);
    x.iter_mut().for_each(|x| *x = rounded(*x * magnitude, dtype));
    x[hidden..2 * hidden].fill(rounded(magnitude, dtype));
    let (weight, bias, dy) = (numbers(2, hidden, dtype), numbers(3, hidden, dtype), numbers(4, rows * hidden, dtype));
    let n = hidden as f64;
    let mean_of = |values: &[f64]| values.iter().sum::<f64>() / n;
    let (mut output, mut grad_input) = (Vec::new(), Vec::new());
    let (mut grad_weight, mut magnitudes) = (vec![0.0; hidden], vec![0.0; hidden]);
    for (x, dy) in x.chunks(hidden).zip(dy.chunks(hidden)) {
        let mean = if layer { mean_of(x) } else { 0.0 };
        let squares: Vec<f64> = x.iter().map(|x| (x - mean) * (x - mean)).collect();
        let rstd = 1.0 / (mean_of(&squares) + f64::from(eps)).sqrt();
        let normed: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
        let scaled: Vec<f64> = dy.iter().zip(&weight).map(|(dy, w)| dy * w).collect();
        let mean_scaled = if layer { mean_of(&scaled) } else { 0.0 };
        let product = mean_of(&normed.iter().zip(&scaled).map(|(x, y)| x * y).collect::<Vec<f64>>());
        for c in 0..hidden {
            output.push(normed[c] * weight[c] + if layer { bias[c] } else { 0.0 });
            grad_input.push((scaled[c] - mean_scaled - normed[c] * product) * rstd);
            grad_weight[c] += dy[c] * normed[c];
            magnitudes[c] += dy[c].abs() * (x[c].abs() + mean.abs()) * rstd;
        }
    }
    let shape = [rows, hidden];
    let (input, weight) = (t.put(&shape, dtype, &x), t.put(&[hidden], dtype, &weight));
    let kind = if layer { NormKind::Layer } else { NormKind::Rms };
    let (normed, rstd) = (t.empty(&shape, dtype), t.empty(&[rows], DType::F32));
    let mean = layer.then(|| t.empty(&[rows], DType::F32));
    let bias = layer.then(|| t.put(&[hidden], dtype, &bias));
    t.run(Norm { kind, input, residual: None, sum: None, weight, bias, output: Some(normed), mean, rstd, eps });
    let (through, of_weight) = (t.empty(&shape, dtype), t.parts(1, t.empty(&[hidden], DType::F32)));
    t.run(NormBackward {
        kind,
        input,
        weight,
        mean,
        rstd,
        grad_output: t.put(&shape, dtype, &dy),
        grad_residual: None,
        grad_input: through,
        weight_parts: Some(of_weight.partial),
        bias_parts: None,
        residual_parts: None,
    });
    t.run(AddPartialColumns { sums: [of_weight].into(), accumulate: false });
    let what = format!("{kind:?}, hidden {hidden}, {dtype} near {magnitude:e} with eps {eps:e}");
    let relative = if dtype == DType::Bf16 { 4e-3 } else { 1e-5 };
    let largest = |values: &[f64]| values.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (name, ours, truth) in [("output", normed, &output), ("input gradient", through, &grad_input)] {
        let allowed = |at: usize| relative * truth[at].abs() + 1e-6 * largest(truth);
        assert_each_close(&format!("{name} of {what}"), &t.get(&ours), truth, allowed);
    }
    let allowed = |column: usize| 3e-6 * magnitudes[column];
    assert_each_close(&format!("weight gradient of {what}"), &t.get(&of_weight.output), &grad_weight, allowed);
}

#[test]
fn norms_of_almost_nothing_and_their_gradients_agree_with_f64() {
    let t = checked_bench();
    // On a GPU a row a warp, a row a block, and the kernels for any size. The host has one kernel for all widths.
    let widths = if on_gpu() { &[256, 4096, 7][..] } else { &[256, 7] };
    for (magnitude, eps) in [0.0, 1e-30, 1e-20, 1e-10, 1e-6, 1e-3].into_iter().flat_map(|x| [(x, 1e-5), (x, 1e-12)]) {
        for (layer, dtype) in FLOATS.into_iter().flat_map(|dtype| [(true, dtype), (false, dtype)]) {
            for &hidden in widths {
                check_small_norm(&t, layer, hidden, magnitude, eps, dtype);
            }
        }
    }
}

/// LayerNorm of rows that each hold one number, of either sign and from small to large, alone and as the sum of two.
fn check_norm_of_equal_numbers(t: &Bench, hidden: usize, dtype: DType, summed: bool) {
    let numbers_of_rows = [0.1, -0.3, 1e-20, 1.0 / 3.0, 777.7, -1e5, 1.1e7, 3e18];
    let (rows, eps) = (numbers_of_rows.len(), 1e-5_f32);
    let row_of = |x: f64| std::iter::repeat_n(rounded(x, dtype), hidden);
    let x: Vec<f64> = numbers_of_rows.iter().flat_map(|&x| row_of(x)).collect();
    let shape = [rows, hidden];
    let (weight, bias) = (numbers(2, hidden, dtype), numbers(3, hidden, dtype));
    let input = t.put(&shape, dtype, &x);
    let (output, rstd) = (t.empty(&shape, dtype), t.empty(&[rows], DType::F32));
    let mean = t.empty(&[rows], DType::F32);
    let sum = summed.then(|| t.empty(&shape, dtype));
    t.run(Norm {
        kind: NormKind::Layer,
        input,
        residual: summed.then(|| t.put(&shape, dtype, &x)),
        sum,
        weight: t.put(&[hidden], dtype, &weight),
        bias: Some(t.put(&[hidden], dtype, &bias)),
        output: Some(output),
        mean: Some(mean),
        rstd,
        eps,
    });
    let what = format!("hidden {hidden}, {dtype}, summed {summed}");
    let doubled = if summed { 2.0 } else { 1.0 };
    let truth: Vec<f64> = x.iter().step_by(hidden).map(|x| doubled * x).collect();
    assert_eq!(t.get(&mean), truth, "means, {what}");
    assert_each_close(&format!("rstd, {what}"), &t.get(&rstd), &vec![1.0 / f64::from(eps).sqrt(); rows], |_| 1e-3);
    assert_eq!(t.get(&output), bias.repeat(rows), "outputs are the bias, {what}");
}

#[test]
fn rows_of_one_number_have_that_mean_and_no_variance() {
    let t = checked_bench();
    // A row a warp with one to four packs a thread, rows that fill no warp, a row a block, and the kernels for any size.
    for hidden in [768, 1000, 256, 512, 120, 2048, 4096, 7, 20_000] {
        for dtype in FLOATS {
            [false, true].into_iter().for_each(|summed| check_norm_of_equal_numbers(&t, hidden, dtype, summed));
        }
    }
}
