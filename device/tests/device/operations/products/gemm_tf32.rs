//! Products of f32 factors as GPUs do them in TF32, by methods that are chosen by timing.

use crate::common::tf32_bench;
use device::DType::F32;
use device::ops::*;

/// Whole numbers that TF32 holds. All their sums are exact in f32, in whatever order they are added.
fn whole_numbers(seed: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + i / 64 * 104_729 + seed * 31) % 17) as f64 - 8.0).collect()
}

#[test]
fn weight_gradients_in_tf32_are_exact_for_whole_numbers_whichever_factor_is_copied() {
    let t = tf32_bench();
    // The factor with fewer columns may be copied: the first, then the second. Tiles of the copy are 64 x 64, and the
    // last ones of the middle products are not whole.
    for (m, n, k) in [(2048, 4096, 640), (2044, 4092, 636), (4092, 2044, 636), (68, 132, 196)] {
        let (a, b) = (whole_numbers(1, k * m), whole_numbers(2, k * n));
        let (grad_output, input) = (t.put(&[k, m], F32, &a), t.put(&[k, n], F32, &b));
        for accumulate in [false, true] {
            let before = whole_numbers(3, m * n);
            let out = t.put(&[m, n], F32, &before);
            let product = Gemm::wgrad(grad_output, input, out, accumulate);
            t.prepare(product.clone());
            t.run(product);
            let ours = t.get(&out);
            for at in (0..m * n).step_by(9973).chain([m * n - 1]) {
                let (row, column) = (at / n, at % n);
                let sum: f64 = (0..k).map(|i| a[i * m + row] * b[i * n + column]).sum();
                let expected = sum + if accumulate { before[at] } else { 0.0 };
                assert_eq!(ours[at], expected, "{m} x {n} x {k}, row {row}, column {column}");
            }
        }
    }
    if t.device.gpu().is_some_and(|gpu| gpu.capability == (9, 0)) {
        let choices = t.device.export_choices().unwrap();
        let copied = choices.lines().filter(|line| line.contains(" transposed ")).count();
        assert!(copied >= 2, "no copy was chosen: {choices}");
    }
}
