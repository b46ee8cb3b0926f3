//! Products of 8-bit factors against f64 references over the numbers of the bytes, on the host or with
//! `TEST_DEVICE=cuda` on a GPU.

use super::quantize_reference::Format;
use crate::common::{Bench, assert_close, checked_bench, numbers, timed_bench};
use device::DType;
use device::DType::{Bf16, F8E4M3, F8E5M2, F32};
use device::ops::*;

/// The kind of [`Scale`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tensor,
    Rows,
    Groups,
    Blocks,
}

impl Kind {
    /// Of a matrix `(rows, columns)`.
    fn shape(self, rows: usize, columns: usize) -> [usize; 2] {
        match self {
            Kind::Tensor => [1, 1],
            Kind::Rows => [1, rows],
            Kind::Groups => [columns.div_ceil(128), rows],
            Kind::Blocks => [rows.div_ceil(128), columns.div_ceil(128).div_ceil(4) * 4],
        }
    }

    /// The index of a value's scale. A row has `width` values.
    fn index(self, row: usize, column: usize, width: usize) -> usize {
        match self {
            Kind::Tensor => 0,
            Kind::Rows => row,
            Kind::Groups => column / 128 * width + row,
            Kind::Blocks => row / 128 * width + column / 128,
        }
    }
}

/// A factor, and its values.
fn factor(t: &Bench, seed: u64, shape: [usize; 2], dtype: DType, kind: Kind) -> (Fp8Matrix, Vec<f64>) {
    let ([rows, columns], format) = (shape, Format::of(dtype));
    let bytes: Vec<u8> = numbers(seed, rows * columns, F32).iter().map(|x| format.nearest(40.0 * x)).collect();
    let [height, width] = kind.shape(rows, columns);
    let scales = numbers(seed + 10, height * width, F32);
    let scales: Vec<f64> = scales.iter().map(|x| f64::from((0.02 + 0.01 * x) as f32)).collect();
    let value = |(i, byte): (usize, &u8)| format.number(*byte) * scales[kind.index(i / columns, i % columns, width)];
    let values = bytes.iter().enumerate().map(value).collect();
    let scale = t.put(&[height, width], F32, &scales);
    let scale = match kind {
        Kind::Tensor => Scale::Tensor(scale),
        Kind::Rows => Scale::Rows(scale),
        Kind::Groups => Scale::Groups(scale),
        Kind::Blocks => Scale::Blocks(scale),
    };
    (Fp8Matrix { values: t.put_bytes(&shape, dtype, &bytes), scale }, values)
}

/// Products are near the f64 reference. GPUs of compute capability 9.0 add up the products of one instruction with
/// about 14 bits, the host in f32.
fn assert_near(t: &Bench, what: &str, out: DType, ours: &[f64], truth: &[f64]) {
    if t.device.gpu().is_none() {
        return assert_close(what, out, ours, truth);
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut ours.iter().zip(truth).map(|(a, b)| a - b));
    let allowed = if out == Bf16 { 6e-3 } else { 2e-3 } * norm(&mut truth.iter().copied());
    // NaN fails too.
    assert!(off <= allowed, "{what} ({out}): off by {off:.2e}, more than {allowed:.2e}");
}

/// Runs a product as a step does: prepared first. On a GPU this may choose an algorithm by timing.
fn run(t: &Bench, op: &Gemm) {
    t.prepare(op.clone());
    t.run(op.clone());
}

/// The pairs of scales by block that a product takes.
const BY_BLOCK: [[Kind; 2]; 3] =
    [[Kind::Groups, Kind::Blocks], [Kind::Blocks, Kind::Groups], [Kind::Groups, Kind::Groups]];

fn check(t: &Bench, (m, n, k): (usize, usize, usize), types: [DType; 2], kinds: [Kind; 2], fast: bool, out: DType) {
    let what = format!("({m}, {n}, {k}) of {types:?}, scales for {kinds:?}, fast: {fast}");
    let (a, a_values) = factor(t, 1, [m, k], types[0], kinds[0]);
    let (b, b_values) = factor(t, 2, [n, k], types[1], kinds[1]);
    let dot = |row: &[f64], column: &[f64]| row.iter().zip(column).map(|(x, y)| x * y).sum::<f64>();
    let product: Vec<f64> =
        a_values.chunks(k).flat_map(|row| b_values.chunks(k).map(move |column| dot(row, column))).collect();

    let plain = t.empty(&[m, n], out);
    run(t, &Gemm::fp8(a, b, plain, fast));
    assert_near(t, &what, out, &t.get(&plain), &product);

    for dtype in [Bf16, F32] {
        let bias = numbers(4, n, dtype);
        let biased = t.empty(&[m, n], out);
        let epilogue = Epilogue::Bias(t.put(&[n], dtype, &bias));
        run(t, &Gemm { epilogue, ..Gemm::fp8(a, b, biased, fast) });
        let truth: Vec<f64> = product.iter().enumerate().map(|(i, x)| x + bias[i % n]).collect();
        assert_near(t, &format!("{what} with a {dtype} bias"), out, &t.get(&biased), &truth);
    }

    let before = numbers(5, m * n, out);
    let added = t.put(&[m, n], out, &before);
    run(t, &Gemm { accumulate: true, ..Gemm::fp8(a, b, added, fast) });
    let truth: Vec<f64> = product.iter().zip(&before).map(|(x, y)| x + y).collect();
    assert_near(t, &format!("{what}, accumulated"), out, &t.get(&added), &truth);
}

const TYPES: [[DType; 2]; 3] = [[F8E4M3, F8E4M3], [F8E5M2, F8E4M3], [F8E4M3, F8E5M2]];

#[test]
fn products_are_those_of_the_values_that_the_bytes_stand_for() {
    let t = checked_bench();
    for (types, kinds) in TYPES.into_iter().flat_map(|types| [(types, [Kind::Tensor; 2]), (types, [Kind::Rows; 2])]) {
        for out in [Bf16, F32] {
            check(&t, (48, 32, 64), types, kinds, false, out);
        }
        check(&t, (144, 272, 400), types, kinds, true, Bf16);
    }
    check(&t, (16, 16, 16), TYPES[0], [Kind::Tensor; 2], false, F32);
}

#[test]
fn products_with_scales_by_block_are_those_of_the_values_that_the_bytes_stand_for() {
    let t = checked_bench();
    for kinds in BY_BLOCK {
        for out in [Bf16, F32] {
            // Whole blocks. Blocks that are not whole, along each of the three sizes and along all.
            for sizes in
                [(128, 256, 384), (16, 128, 128), (128, 336, 256), (128, 128, 192), (144, 272, 656), (48, 32, 64)]
            {
                check(&t, sizes, TYPES[0], kinds, false, out);
            }
        }
    }
}

#[test]
fn an_algorithm_chosen_by_timing_gives_the_same_products() {
    let t = timed_bench();
    for kind in [Kind::Tensor, Kind::Rows] {
        check(&t, (128, 256, 512), TYPES[1], [kind; 2], false, F32);
        check(&t, (128, 256, 512), TYPES[0], [kind; 2], true, Bf16);
    }
    for kinds in BY_BLOCK {
        check(&t, (128, 256, 512), TYPES[0], kinds, false, F32);
        check(&t, (128, 256, 512), TYPES[0], kinds, false, Bf16);
    }
}

#[test]
fn factors_that_a_gpu_could_not_multiply_are_refused_with_the_reason() {
    let t = checked_bench();
    let ones = |count: usize| t.put(&[count], F32, &vec![1.0; count]);
    let factor = |rows: usize, columns: usize, dtype| Fp8Matrix {
        values: t.put_bytes(&[rows, columns], dtype, &vec![0x38; rows * columns]),
        scale: Scale::Tensor(ones(1)),
    };
    let (a, b, out) = (factor(32, 64, F8E4M3), factor(16, 64, F8E4M3), t.empty(&[32, 16], Bf16));
    let good = Gemm::fp8(a, b, out, true);
    t.run(good.clone());
    let per_row = |matrix: Fp8Matrix, rows| Fp8Matrix { scale: Scale::Rows(ones(rows)), ..matrix };
    let refused = |op: Gemm, needle: &str| {
        let message = t.stream.submit(op).unwrap_err().to_string();
        assert!(message.starts_with("gemm:") && message.contains(needle), "{message}");
    };
    for (m, n, k) in [(40, 16, 64), (32, 24, 64), (32, 16, 56)] {
        let sizes = Gemm::fp8(factor(m, k, F8E4M3), factor(n, k, F8E4M3), t.empty(&[m, n], Bf16), true);
        refused(sizes, "multiples of 16");
    }
    refused(Gemm::fp8(factor(32, 64, F8E5M2), factor(16, 64, F8E5M2), out, true), "both factors are fp8-e5m2");
    refused(Gemm { b: factor(64, 16, F8E4M3).values, transpose_b: false, ..good.clone() }, "`b` is");
    refused(Gemm { a: factor(64, 32, F8E4M3).values, transpose_a: true, ..good.clone() }, "`a` is");
    refused(Gemm::fp8(per_row(a, 32), b, out, true), "both have one for each row");
    refused(Gemm::fp8(per_row(a, 16), per_row(b, 16), out, true), "scale");
    refused(Gemm { fp8: None, ..good.clone() }, "`a` is fp8-e4m3");
    refused(Gemm { a: t.empty(&[32, 64], Bf16), ..good.clone() }, "needs an 8-bit floating type");
    refused(Gemm { out: factor(32, 16, F8E4M3).values, ..good.clone() }, "`out` is fp8-e4m3");
    let epilogue = Epilogue::BiasGelu { bias: t.empty(&[16], Bf16), pre: t.empty(&[32, 16], Bf16) };
    refused(Gemm { epilogue, ..good.clone() }, "can only add a bias");
    let epilogue = Epilogue::Bias(t.empty(&[16], Bf16));
    refused(Gemm { epilogue, accumulate: true, ..good }, "takes no epilogue");
}

#[test]
fn scales_by_block_that_no_product_takes_are_refused_with_the_reason() {
    let t = checked_bench();
    let of = |kind, rows, dtype| factor(&t, 1, [rows, 64], dtype, kind).0;
    let (a, b) = (of(Kind::Groups, 32, F8E4M3), of(Kind::Blocks, 16, F8E4M3));
    let out = t.empty(&[32, 16], Bf16);
    t.run(Gemm::fp8(a, b, out, false));
    let refused = |a: Fp8Matrix, b: Fp8Matrix, fast: bool, needle: &str| {
        let message = t.stream.submit(Gemm::fp8(a, b, out, fast)).unwrap_err().to_string();
        assert!(message.starts_with("gemm:") && message.contains(needle), "{message}");
    };
    refused(a, b, true, "accumulates precisely");
    for (kind_a, kind_b) in [(Kind::Blocks, Kind::Blocks), (Kind::Groups, Kind::Tensor), (Kind::Rows, Kind::Blocks)] {
        refused(of(kind_a, 32, F8E4M3), of(kind_b, 16, F8E4M3), false, "one has scales for groups");
    }
    refused(of(Kind::Groups, 32, F8E5M2), b, false, "go with fp8-e4m3, not with fp8-e5m2");
    let turned = Fp8Matrix { scale: Scale::Groups(t.empty(&[32, 1], F32)), ..a };
    refused(turned, b, false, "`scale` has shape (32, 1), needs (1, 32)");
    let unpadded = Fp8Matrix { scale: Scale::Blocks(t.empty(&[1, 1], F32)), ..b };
    refused(a, unpadded, false, "`scale` has shape (1, 1), needs (1, 4)");
}
