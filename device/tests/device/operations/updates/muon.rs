//! Muon's operations beside matrix products, against naive f64 references.

use device::DType::{Bf16, F32};
use device::ops::*;

use crate::common::{FLOATS, assert_close, bench, numbers, rounded};

#[test]
fn momentum_and_step_agree_with_f64_and_leave_a_gradient_alone_that_is_not_finite() {
    const SIZE: usize = 300;
    let t = bench(2);
    let control = t.block(&Control { learning_rate: 0.01, ..Control::default() });
    let (mut w, mut m) = (numbers(1, SIZE, F32), vec![0.0; SIZE]);
    let (master, momentum) = (t.put(&[SIZE], F32, &w), t.put(&[SIZE], F32, &m));
    let compute = t.empty(&[SIZE], Bf16);
    for step in 0..4 {
        let finite = u32::from(step != 2);
        let status = t.block(&Status { finite, applies: finite, grad_factor: 0.5, ..Status::default() });
        let g = numbers(10 + step, SIZE, F32);
        let grad = t.put(&[SIZE], F32, &g);
        t.run(NesterovMomentum { tensors: [MomentumTensors { grad, momentum }].into(), beta: 0.9, status });
        let tensors =
            DecayedTensors { master, compute: Some(compute), direction: grad, weight_decay: 0.1, lr_multiplier: 0.5 };
        t.run(DecayedStep { tensors: [tensors].into(), control, status });
        let mut direction = g.clone();
        if finite == 1 {
            for i in 0..SIZE {
                m[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
                direction[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
                w[i] -= 0.01 * 0.5 * (0.1 * w[i] + direction[i]);
            }
        }
        assert_close("momentum", F32, &t.get(&momentum), &m);
        assert_close("direction", F32, &t.get(&grad), &direction);
        assert_close("weights", F32, &t.get(&master), &w);
    }
    let expected: Vec<f64> = t.get(&master).into_iter().map(|x| rounded(x, Bf16)).collect();
    assert_eq!(t.get(&compute), expected, "what layers compute with is the master, rounded");
}

#[test]
fn a_block_is_scaled_into_its_place_and_nothing_else_changes() {
    for (from_dtype, to_dtype) in FLOATS.into_iter().flat_map(|a| FLOATS.map(|b| (a, b))) {
        for norm in [None, Some(3.0), Some(0.0)] {
            let t = bench(3);
            let (x, y) = (numbers(1, 5 * 7, from_dtype), numbers(2, 6 * 9, to_dtype));
            let (from, to) = (t.put(&[5, 7], from_dtype, &x), t.put(&[6, 9], to_dtype, &y));
            let square_sum = norm.map(|norm: f64| t.put(&[1], F32, &[norm * norm]));
            let (from_block, to_block) =
                (Corner { matrix: from, row: 1, column: 2 }, Corner { matrix: to, row: 3, column: 4 });
            let factor = if norm == Some(0.0) { 1e-7 } else { 0.75 };
            t.run(ScaleBlock { from: from_block, to: to_block, rows: 3, columns: 5, factor, square_sum });
            let factor = f64::from(factor) / norm.map_or(1.0, |norm| norm.max(1e-7));
            let mut expected = y;
            for (row, column) in (0..3).flat_map(|row| (0..5).map(move |column| (row, column))) {
                expected[(3 + row) * 9 + 4 + column] = x[(1 + row) * 7 + 2 + column] * factor;
            }
            assert_close("block", to_dtype, &t.get(&to), &expected);
        }
    }
}

#[test]
fn a_polynomial_of_a_matrix_agrees_with_f64() {
    for (dtype, n) in FLOATS.into_iter().flat_map(|dtype| [1, 7, 64].map(|n| (dtype, n))) {
        let t = bench(3);
        let (x, square) = (numbers(1, n * n, dtype), numbers(2, n * n, dtype));
        let output = t.empty(&[n, n], dtype);
        let coefficients = [3.0, -4.5, 2.0];
        let (x_t, square_t) = (t.put(&[n, n], dtype, &x), t.put(&[n, n], dtype, &square));
        t.run(MatrixPolynomial { x: x_t, square: square_t, coefficients, output });
        let identity = |i: usize| if i / n == i % n { 3.0 } else { 0.0 };
        let expected: Vec<f64> = (0..n * n).map(|i| identity(i) - 4.5 * x[i] + 2.0 * square[i]).collect();
        assert_close("polynomial", dtype, &t.get(&output), &expected);
    }
}
