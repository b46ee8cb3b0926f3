//! 8-bit copies with scales for groups and blocks against f64 references, on the host or with `TEST_DEVICE=cuda` on a GPU.

use super::quantize_reference::{Format, KINDS, Kind, Matrix, quantized, transposed};
use crate::common::{Bench, FLOATS, checked_bench, numbers, rounded};
use device::DType::{Bf16, F8E4M3, F8E5M2, F32};
use device::ops::*;
use device::{DType, Tensor};
use proptest::prelude::*;

/// The smallest power of two that brings a largest magnitude down to 448 or less.
fn scale_of(amax: f64) -> f64 {
    if !amax.is_finite() {
        return f64::NAN;
    }
    let exponent = (-126..128).find(|exponent| amax <= 448.0 * 2f64.powi(*exponent));
    if amax == 0.0 { 1.0 } else { 2f64.powi(exponent.unwrap()) }
}

/// A copy of a matrix with scales for groups, or with `square` for blocks.
fn copy(t: &Bench, [rows, columns]: [usize; 2], square: bool) -> Fp8Matrix {
    let shape = match square {
        true => [rows.div_ceil(128), columns.div_ceil(128).div_ceil(4) * 4],
        false => [columns.div_ceil(128), rows],
    };
    let scales = t.empty(&shape, F32);
    let scale = if square { Scale::Blocks(scales) } else { Scale::Groups(scales) };
    Fp8Matrix { values: t.put_bytes(&[rows, columns], F8E4M3, &vec![0xff; rows * columns]), scale }
}

/// Checks scales and bytes of a copy of `values`; `matrix` says how exact they are.
fn check_copy(t: &Bench, what: &str, matrix: &Matrix, copy: &Fp8Matrix, values: &[f64]) {
    let (format, columns) = (Format::of(F8E4M3), copy.values.shape.last());
    let (height, tensor) = match copy.scale {
        Scale::Blocks(tensor) => (128, tensor),
        _ => (1, copy.scale.tensor()),
    };
    let (scales, bytes): (Vec<f32>, _) = (t.device.download(&tensor).unwrap(), t.get_bytes(&copy.values));
    let width = tensor.shape.last();
    let place = |row: usize, block: usize| if height == 1 { block * width + row } else { row / 128 * width + block };
    let mut seen = vec![false; scales.len()];
    let lines: Vec<(&[f64], &[u8])> = values.chunks(columns).zip(bytes.chunks(columns)).collect();
    for (strip, lines) in lines.chunks(height).enumerate() {
        for block in 0..columns.div_ceil(128) {
            let range = block * 128..columns.min(block * 128 + 128);
            let within = || lines.iter().flat_map(|(x, bytes)| x[range.clone()].iter().zip(&bytes[range.clone()]));
            let amax = within().fold(0.0f64, |amax, (x, _)| if x.is_nan() { f64::INFINITY } else { amax.max(x.abs()) });
            let (row, off) = (strip * height, matrix.allowed(amax));
            let scale = scales[place(row, block)];
            seen[place(row, block)] = true;
            if !amax.is_finite() {
                assert!(scale.is_nan(), "{what}, row {row} block {block} of {matrix:?}: {scale:e}");
                assert!(within().all(|(_, byte)| format.number(*byte).is_nan()), "{what}: NaN shows in all of a block");
                continue;
            }
            let possible = [scale_of((amax - off).max(0.0)), scale_of(amax + off)];
            let found = f64::from(scale);
            let zeros = off > 0.0 && amax <= off;
            assert!(
                possible.contains(&found) || zeros,
                "{what}, row {row} block {block} of {matrix:?}: {scale:e}, not {possible:?} of {amax:e}"
            );
            for (x, byte) in within() {
                let wanted = quantized(*x, scale, &format);
                let near = matrix.kind != Kind::Stored
                    && (format.steps(*byte, wanted).is_some_and(|steps| steps <= 1)
                        || (format.number(*byte) * found - x).abs() <= matrix.allowed(*x));
                assert!(
                    *byte == wanted || near,
                    "{what}, row {row} block {block} of {matrix:?}: {x:e} scaled by {scale:e} is {byte:#x}, not {wanted:#x}"
                );
            }
        }
    }
    let padding = scales.iter().zip(seen).filter(|(_, seen)| !seen).all(|(scale, _)| *scale == 0.0);
    assert!(padding, "{what} of {matrix:?}: what lies between scales is 0: {scales:?}");
}

/// The wanted copies and sums. Sums may be added to earlier values.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    square: bool,
    rows: bool,
    columns: bool,
    sums: Option<bool>,
}

fn check(t: &Bench, matrix: Matrix, (values, source): &(Vec<f64>, QuantizeSource), wanted: Wanted) {
    let [rows, columns] = matrix.shape;
    let made = |wanted_too: bool, shape| wanted_too.then(|| copy(t, shape, wanted.square));
    let (row_copy, column_copy) = (made(wanted.rows, [rows, columns]), made(wanted.columns, [columns, rows]));
    let before = numbers(9, columns, F32);
    let sums = wanted.sums.map(|_| t.put(&[columns], F32, &before));
    let accumulate = wanted.sums == Some(true);
    t.run(Quantize { source: *source, rows: row_copy, columns: column_copy, amax: None, sums, accumulate });
    if let Some(copy) = row_copy {
        check_copy(t, "row copy", &matrix, &copy, values);
    }
    if let Some(copy) = column_copy {
        check_copy(t, "transposed copy", &matrix, &copy, &transposed(values, columns));
    }
    for (c, sum) in sums.iter().flat_map(|sums| t.get(sums)).enumerate() {
        let column = || values.iter().skip(c).step_by(columns);
        let truth = if accumulate { before[c] } else { 0.0 } + column().sum::<f64>();
        let allowed = column().map(|x| matrix.allowed(*x) + 1e-6 * x.abs()).sum::<f64>() + 1e-6;
        assert!((sum - truth).abs() <= allowed, "sum {c} of {matrix:?} is {sum}, not {truth}");
    }
}

/// One copy or both, with and without sums.
fn combinations() -> Vec<Wanted> {
    let mut all = Vec::new();
    for square in [false, true] {
        for (rows, columns, sums) in
            [(true, true, None), (true, true, Some(false)), (true, false, Some(true)), (false, true, None)]
        {
            all.push(Wanted { square, rows, columns, sums });
        }
    }
    all
}

#[test]
fn every_source_has_its_scales_in_both_copies() {
    for (kind, dtype) in KINDS.into_iter().flat_map(|kind| FLOATS.map(|dtype| (kind, dtype))) {
        // Whole blocks, in the halves of a gradient of `[gate | up]` too; blocks that are not whole; halves that are no
        // multiple of 128, so that a group lies in both.
        for shape in [[128, 256], [272, 656], [16, 16], [144, 320]] {
            let (t, matrix) = (checked_bench(), Matrix { kind, dtype, shape, offset: 0 });
            let made = matrix.make(&t);
            for wanted in combinations() {
                check(&t, matrix, &made, wanted);
            }
        }
    }
}

#[test]
fn all_bf16_numbers_have_exact_copies_and_what_is_not_finite_shows_in_its_blocks() {
    for dtype in FLOATS {
        let t = checked_bench();
        let values: Vec<f64> = (0..=u16::MAX).map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect();
        let source = QuantizeSource::Stored(t.put(&[256, 256], dtype, &values));
        for wanted in combinations().into_iter().filter(|wanted| wanted.sums.is_none()) {
            let matrix = Matrix { kind: Kind::Stored, dtype, shape: [256, 256], offset: 0 };
            check(&t, matrix, &(values.clone(), source), wanted);
        }
    }
}

#[test]
fn zeros_have_a_scale_of_1_and_the_smallest_numbers_one_with_a_normal_inverse() {
    let t = checked_bench();
    for dtype in FLOATS {
        let mut values = numbers(1, 128 * 256, dtype);
        values.iter_mut().enumerate().filter(|(i, _)| i % 256 < 128).for_each(|(_, x)| *x *= 1e-39);
        values[..256].fill(0.0);
        values.iter_mut().for_each(|x| *x = rounded(*x, dtype));
        let source = QuantizeSource::Stored(t.put(&[128, 256], dtype, &values));
        let (rows, columns) = (copy(&t, [128, 256], false), copy(&t, [256, 128], false));
        t.run(Quantize { source, rows: Some(rows), columns: Some(columns), amax: None, sums: None, accumulate: false });
        let of_rows = t.get(&rows.scale.tensor());
        assert_eq!((of_rows[0], of_rows[1], of_rows[128]), (1.0, f64::from(f32::MIN_POSITIVE), 1.0));
        let matrix = Matrix { kind: Kind::Stored, dtype, shape: [128, 256], offset: 0 };
        check_copy(&t, "row copy", &matrix, &rows, &values);
        check_copy(&t, "transposed copy", &matrix, &columns, &transposed(&values, 256));
    }
}

#[test]
fn what_a_gpu_could_not_make_in_one_pass_is_refused_with_the_reason() {
    let t = checked_bench();
    let input = t.put(&[32, 64], Bf16, &[1.0; 2048]);
    let good = Quantize {
        source: QuantizeSource::Stored(input),
        rows: Some(copy(&t, [32, 64], false)),
        columns: Some(copy(&t, [64, 32], false)),
        amax: None,
        sums: None,
        accumulate: false,
    };
    t.run(good.clone());
    let refused = |op: Quantize, needle: &str| {
        let message = t.stream.submit(op).unwrap_err().to_string();
        assert!(message.starts_with("quantize:") && message.contains(needle), "{message}");
    };
    let with_scale = |scale: Tensor, dtype: DType| Fp8Matrix {
        values: t.put_bytes(&[64, 32], dtype, &[0; 2048]),
        scale: if dtype == F8E5M2 { Scale::Groups(scale) } else { Scale::Tensor(scale) },
    };
    refused(Quantize { columns: Some(copy(&t, [64, 32], true)), ..good.clone() }, "both copies have scales for groups");
    let one = with_scale(t.empty(&[1], F32), F8E4M3);
    refused(Quantize { columns: Some(one), ..good.clone() }, "both copies have scales for groups");
    let e5m2 = with_scale(t.empty(&[1, 64], F32), F8E5M2);
    refused(Quantize { columns: Some(e5m2), ..good.clone() }, "go with fp8-e4m3");
    refused(Quantize { amax: Some(t.put(&[1], F32, &[0.0])), ..good.clone() }, "`amax` goes with one scale");
    let turned = Fp8Matrix { scale: Scale::Groups(t.empty(&[32, 1], F32)), ..good.rows.unwrap() };
    refused(Quantize { rows: Some(turned), ..good.clone() }, "`scale` has shape (32, 1), needs (1, 32)");
    let odd = |shape: [usize; 2]| Quantize {
        source: QuantizeSource::Stored(t.put(&shape, Bf16, &vec![1.0; shape[0] * shape[1]])),
        rows: Some(copy(&t, shape, false)),
        columns: None,
        ..good.clone()
    };
    refused(odd([24, 64]), "a matrix (24, 64) needs sizes that are multiples of 16");
    refused(odd([32, 40]), "a matrix (32, 40) needs sizes that are multiples of 16");
    let late = t.put(&[2049], Bf16, &[1.0; 2049]).view(1, [32, 64]);
    refused(Quantize { source: QuantizeSource::Stored(late), ..good }, "`input` begins at");
}

fn random_matrix() -> impl Strategy<Value = Matrix> {
    let size = || (1usize..26).prop_map(|sixteens| 16 * sixteens);
    let (kind, dtype) = (prop::sample::select(KINDS.to_vec()), prop::sample::select(FLOATS.to_vec()));
    (kind, dtype, size(), size()).prop_map(|(kind, dtype, rows, columns)| Matrix {
        kind,
        dtype,
        shape: [rows, columns],
        offset: 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matrices_of_any_multiples_of_16_are_quantised(
        matrix in random_matrix(),
        wanted in prop::sample::select(combinations()),
    ) {
        let t = checked_bench();
        check(&t, matrix, &matrix.make(&t), wanted);
    }
}
