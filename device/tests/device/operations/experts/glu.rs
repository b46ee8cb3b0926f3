//! Weighted gated linear units against an f64 reference and finite differences, on the host or with `TEST_DEVICE=cuda` on a
//! GPU.

use crate::common::{Bench, FLOATS, assert_close, assert_sums_close, checked_bench, finite_differences, numbers};
use crate::operations::functions::{gelu, silu};
use device::DType::{self, Bf16, F32};
use device::ops::*;

fn function(gate: Gate, x: f64, up: f64) -> f64 {
    match gate {
        Gate::Silu => up * silu(x),
        Gate::ClampedSilu => (up.clamp(-7.0, 7.0) + 1.0) * x.min(7.0) / (1.0 + (-1.702 * x.min(7.0)).exp()),
        Gate::Gelu => up * gelu(x),
    }
}

/// The unit of a row: gates, as many other values, then the weight.
fn unit(gate: Gate, values: &[f64]) -> Vec<f64> {
    let width = values.len() / 2;
    let (gates, rest) = values.split_at(width);
    gates.iter().zip(rest).map(|(g, up)| function(gate, *g, *up) * values[2 * width]).collect()
}

/// A permutation of `0..rows`.
fn permutation(rows: usize) -> Vec<i32> {
    let keys = numbers(9, rows, F32);
    let mut pairs: Vec<i32> = (0..rows as i32).collect();
    pairs.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
    pairs
}

fn check(t: &Bench, gate: Gate, rows: usize, width: usize, dtype: DType) {
    let what = |name: &str| format!("{name}, {gate:?} of {rows} rows of {width}");
    let (mut x, dy) = (numbers(1, rows * 2 * width, dtype), numbers(2, rows * width, dtype));
    if gate == Gate::ClampedSilu {
        // Some are beyond the bounds, and none on one.
        x.iter_mut().for_each(|x| *x = if (*x * 8.0).abs() == 7.0 { 6.0 } else { *x * 8.0 });
    }
    let (weight_values, pair_values) = (numbers(3, rows, F32), permutation(rows));
    let (input, weights) = (t.put(&[rows, 2 * width], dtype, &x), t.put(&[rows, 1], F32, &weight_values));
    let (pairs, output) = (t.ints(&[rows], &pair_values), t.empty(&[rows, width], dtype));
    t.run(ExpertGlu { gate, input, weights, pairs, output });
    let (again, grad_input) = (t.empty(&[rows, width], dtype), t.empty(&[rows, 2 * width], dtype));
    let grad_weights = t.empty(&[rows, 1], F32);
    let grad_output = t.put(&[rows, width], dtype, &dy);
    t.run(ExpertGluBackward { gate, input, weights, pairs, grad_output, grad_input, output: again, grad_weights });

    let (mut truth, mut grad_truth) = (Vec::new(), Vec::new());
    let (mut weight_truth, mut magnitudes) = (vec![0.0; rows], vec![0.0; rows]);
    for (row, pair) in pair_values.iter().enumerate() {
        let mut values = x[row * 2 * width..][..2 * width].to_vec();
        values.push(weight_values[*pair as usize]);
        let dy = &dy[row * width..][..width];
        // Elements do not meet, so the differences are those of one after the other.
        let mut grads = vec![0.0; 2 * width];
        for i in 0..width {
            let element = [values[i], values[width + i], values[2 * width]];
            let of = finite_differences(&element, &dy[i..=i], |element| unit(gate, element));
            (grads[i], grads[width + i]) = (of[0], of[1]);
            weight_truth[*pair as usize] += of[2];
            magnitudes[*pair as usize] += of[2].abs();
        }
        truth.extend(unit(gate, &values));
        grad_truth.extend(grads);
    }
    assert_close(&what("output"), dtype, &t.get(&output), &truth);
    assert_eq!(t.get(&again), t.get(&output), "{}", what("the forward's bits again"));
    assert_close(&what("gradient"), dtype, &t.get(&grad_input), &grad_truth);
    // On a GPU the function of 16-bit values is good for 1e-5.
    let near: Vec<f64> = magnitudes.iter().map(|x| if dtype == Bf16 { 30.0 * x } else { *x }).collect();
    assert_sums_close(&what("gradient of weights"), F32, &t.get(&grad_weights), &weight_truth, &near);
}

#[test]
fn weighted_units_and_their_gradients_agree_with_f64_and_finite_differences() {
    let t = checked_bench();
    for (gate, dtype) in
        [Gate::Silu, Gate::Gelu, Gate::ClampedSilu].into_iter().flat_map(|gate| FLOATS.map(|dtype| (gate, dtype)))
    {
        // A row for a part of a warp, for a warp and for a block; 16 bytes at a time or one value.
        for (rows, width) in [(1, 1), (11, 36), (13, 37), (6, 264), (3, 1032), (5, 2560), (3, 333)] {
            check(&t, gate, rows, width, dtype);
        }
    }
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    let t = checked_bench();
    let forward = |input: [usize; 2], weights: usize, pairs: usize, output: ([usize; 2], DType)| {
        t.refusal(ExpertGlu {
            gate: Gate::Silu,
            input: t.empty(&input, F32),
            weights: t.empty(&[weights], F32),
            pairs: t.empty_ints(&[pairs]),
            output: t.empty(&output.0, output.1),
        })
    };
    let backward = |grad_output: [usize; 2], grad_input: [usize; 2], grad_weights: usize| {
        t.refusal(ExpertGluBackward {
            gate: Gate::Silu,
            input: t.empty(&[6, 8], F32),
            weights: t.empty(&[6], F32),
            pairs: t.empty_ints(&[6]),
            grad_output: t.empty(&grad_output, F32),
            grad_input: t.empty(&grad_input, F32),
            output: t.empty(&[6, 4], F32),
            grad_weights: t.empty(&[grad_weights], F32),
        })
    };
    for (error, words) in [
        (
            forward([6, 7], 6, 6, ([6, 4], F32)),
            "expert_glu: `[gate | up]` is (6, 7), needs twice the last axis of (6, 4)",
        ),
        (forward([6, 8], 5, 6, ([6, 4], F32)), "expert_glu: `weights` of shape (5)"),
        (forward([6, 8], 6, 7, ([6, 4], F32)), "expert_glu: `pairs` of shape (7)"),
        (forward([6, 8], 6, 6, ([6, 4], Bf16)), "expert_glu: `output` is bf16, needs f32"),
        (backward([6, 4], [6, 6], 6), "expert_glu_backward: `[gate | up]` is (6, 6)"),
        (backward([6, 3], [6, 6], 6), "expert_glu_backward: `grad_output` of shape (6, 3)"),
        (backward([6, 4], [6, 8], 7), "expert_glu_backward: `weights` of shape (7)"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn biases_of_experts_and_their_gradients_agree_with_f64() {
    let t = checked_bench();
    // An expert without rows, one with most, and two rows that are dropped.
    let (offsets, all, k) = ([0, 3, 3, 4, 13], 15, 3);
    let of_row = |row: usize| (0..4).find(|expert| (offsets[*expert]..offsets[expert + 1]).contains(&(row as i32)));
    for (width, dtype) in [(8, F32), (24, Bf16), (5, F32), (37, Bf16)] {
        let (rows, bias, weights) =
            (numbers(1, all * width, dtype), numbers(2, 4 * width, dtype), numbers(3, all, F32));
        let mut pairs = permutation(all);
        pairs[13..].iter_mut().for_each(|pair| *pair = -1 - *pair);
        let (offsets, b) = (t.ints(&[5], &offsets), t.put(&[4 * width], dtype, &bias));
        let row_weights = RowWeights { weights: t.put(&[all / k, k], F32, &weights), pairs: t.ints(&[all], &pairs) };
        for of in [None, Some(row_weights)] {
            let weight = |row: usize| if of.is_some() { weights[pairs[row] as usize] } else { 1.0 };
            let sums = t.put(&[all, width], dtype, &rows);
            t.run(AddExpertBias { rows: sums, bias: b, offsets, weights: of });
            let sum = |at: usize| {
                let row = at / width;
                rows[at] + of_row(row).map_or(0.0, |expert| weight(row) * bias[expert * width + at % width])
            };
            let truth: Vec<f64> = (0..all * width).map(sum).collect();
            assert_close("rows with biases", dtype, &t.get(&sums), &truth);

            let (before, grads) = (numbers(4, 4 * width, F32), t.put(&[all, width], dtype, &rows));
            let grad = t.put(&[4 * width], F32, &before);
            let mut truth = before;
            for (at, x) in rows.iter().enumerate() {
                let (row, column) = (at / width, at % width);
                of_row(row).into_iter().for_each(|expert| truth[expert * width + column] += weight(row) * x);
            }
            t.run(ExpertBiasGradient { rows: grads, offsets, weights: of, grad, accumulate: true });
            assert_close("gradient of biases", F32, &t.get(&grad), &truth);
        }
        let before = numbers(5, all, F32);
        let (grad_weights, grads) = (t.put(&[all / k, k], F32, &before), t.put(&[all, width], dtype, &rows));
        let mut truth = before;
        for row in 0..13 {
            let expert = of_row(row).unwrap();
            let dot = |column: usize| rows[row * width + column] * bias[expert * width + column];
            truth[pairs[row] as usize] += (0..width).map(dot).sum::<f64>();
        }
        t.run(ExpertBiasDots { rows: grads, bias: b, offsets, pairs: row_weights.pairs, grad_weights });
        assert_close("gradient of weights", F32, &t.get(&grad_weights), &truth);
    }
}
