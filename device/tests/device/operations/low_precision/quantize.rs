//! 8-bit copies and their scales against f64 references, on the host or with `TEST_DEVICE=cuda` on a GPU.

use device::DType;
use device::DType::{Bf16, F8E4M3, F8E5M2, F32};
use device::ops::*;
use proptest::prelude::*;

use super::quantize_reference::{Format, KINDS, Kind, Matrix, quantized, transposed};
use crate::common::{Bench, FLOATS, checked_bench, numbers, on_gpu, rounded};

/// How a copy is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    /// By this, for all.
    Tensor(f32),
    Rows,
}

/// The wanted outputs.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    rows: Option<(DType, Scaling)>,
    columns: Option<(DType, Scaling)>,
    amax: bool,
    /// The sums. `Some(true)` adds to their earlier values.
    sums: Option<bool>,
}

fn check_copy(what: &str, matrix: &Matrix, bytes: &[u8], values: &[f64], scales: &[f32], format: &Format) {
    let width = values.len() / scales.len();
    for (i, (byte, x)) in bytes.iter().zip(values).enumerate() {
        let scale = scales[i / width];
        let wanted = quantized(*x, scale, format);
        if matches!(matrix.kind, Kind::Stored | Kind::Rounded) {
            let same = *byte == wanted || format.steps(*byte, wanted) == Some(0) && format.number(wanted).is_nan();
            assert!(same, "{what}: element {i} of {matrix:?} is {byte:#x}, not {wanted:#x}");
            continue;
        }
        // The byte may be one step beside, for a value near the middle of two numbers. Or its number is within the
        // tolerance.
        let near = format.steps(*byte, wanted).is_some_and(|steps| steps <= 1)
            || (format.number(*byte) * f64::from(scale) - x).abs() <= matrix.allowed(*x);
        assert!(near, "{what}: element {i} of {matrix:?}, {x:e} scaled by {scale:e}, is {byte:#x}, not {wanted:#x}");
    }
}

/// Checks a copy of `values`, and its scales if the operation made them.
fn check_scaled_copy(t: &Bench, what: &str, matrix: &Matrix, copy: &Fp8Matrix, values: &[f64]) {
    let format = Format::of(copy.values.dtype);
    let scales: Vec<f32> = t.device.download(&copy.scale.tensor()).unwrap();
    if let Scale::Rows(_) = copy.scale {
        for (scale, row) in scales.iter().zip(values.chunks(values.len() / scales.len())) {
            let amax = row.iter().fold(0.0f64, |amax, x| amax.max(x.abs()));
            let truth = if amax == 0.0 { 1.0 } else { f64::from((amax / format.largest()) as f32) };
            let off = (f64::from(*scale) - truth).abs();
            let allowed = matrix.allowed(amax) / format.largest();
            assert!(off <= allowed, "{what}: scale {scale:e} of {matrix:?}, not {truth:e}");
        }
    }
    check_copy(what, matrix, &t.get_bytes(&copy.values), values, &scales, &format);
}

fn check(t: &Bench, matrix: Matrix, (values, source): &(Vec<f64>, QuantizeSource), wanted: Wanted) {
    let Matrix { shape: [rows, columns], offset, .. } = matrix;
    let scalar = |x: f32| t.put(&[1], F32, &[f64::from(x)]);
    let bytes = |shape: [usize; 2], dtype| {
        let count = rows * columns + offset;
        t.put_bytes(&[count], dtype, &vec![0xff; count]).view(offset, shape)
    };
    let mut shared = None;
    let row_copy = wanted.rows.map(|(dtype, scaling)| Fp8Matrix {
        values: bytes([rows, columns], dtype),
        scale: match scaling {
            Scaling::Tensor(scale) => Scale::Tensor(shared.insert((scale, scalar(scale))).1),
            Scaling::Rows => Scale::Rows(t.empty(&[rows], F32)),
        },
    });
    let column_copy = wanted.columns.map(|(dtype, scale)| Fp8Matrix {
        values: bytes([columns, rows], dtype),
        // The same tensor if the scale is the same, as a step would have it.
        scale: match (scale, shared) {
            (Scaling::Rows, _) => Scale::Rows(t.empty(&[columns], F32)),
            (Scaling::Tensor(scale), Some((other, tensor))) if other == scale => Scale::Tensor(tensor),
            (Scaling::Tensor(scale), _) => Scale::Tensor(scalar(scale)),
        },
    });
    let peak = values.iter().fold(0.0f64, |peak, x| peak.max(x.abs()));
    let before = numbers(9, columns, F32);
    let sums = wanted.sums.map(|_| t.put(&[columns], F32, &before));
    // Below the peak and above it.
    for first in if wanted.amax { vec![0.0, 1e3] } else { vec![0.0] } {
        let amax = wanted.amax.then(|| scalar(first));
        if let Some(sums) = &sums {
            t.device.upload(sums, &before.iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap();
        }
        t.run(Quantize {
            source: *source,
            rows: row_copy,
            columns: column_copy,
            amax,
            sums,
            accumulate: wanted.sums == Some(true),
        });
        if let Some(amax) = amax {
            let (found, truth) = (t.get(&amax)[0], peak.max(f64::from(first)));
            assert!((found - truth).abs() <= matrix.allowed(peak), "amax {found} of {matrix:?}, not {truth}");
        }
    }
    if let Some(copy) = row_copy {
        check_scaled_copy(t, "row copy", &matrix, &copy, values);
    }
    if let Some(copy) = column_copy {
        check_scaled_copy(t, "transposed copy", &matrix, &copy, &transposed(values, columns));
    }
    if let Some(sums) = &sums {
        for (c, sum) in t.get(sums).into_iter().enumerate() {
            let column = || values.iter().skip(c).step_by(columns);
            let start = if wanted.sums == Some(true) { before[c] } else { 0.0 };
            let truth = start + column().sum::<f64>();
            let allowed = column().map(|x| matrix.allowed(*x) + 1e-6 * x.abs()).sum::<f64>() + 1e-6;
            assert!((sum - truth).abs() <= allowed, "sum {c} of {matrix:?} is {sum}, not {truth}");
        }
    }
}

/// Every output alone and all of them together, in both types, with one scale for both copies and with two.
fn combinations() -> Vec<Wanted> {
    let mut all = Vec::new();
    let rows = [
        None,
        Some((F8E4M3, Scaling::Tensor(0.011))),
        Some((F8E5M2, Scaling::Tensor(0.7))),
        Some((F8E4M3, Scaling::Rows)),
        Some((F8E5M2, Scaling::Rows)),
    ];
    for rows in rows {
        for columns in [None, Some((F8E4M3, Scaling::Tensor(0.011))), Some((F8E5M2, Scaling::Tensor(0.02)))] {
            for (amax, sums) in [(false, None), (true, None), (false, Some(false)), (true, Some(true))] {
                all.push(Wanted { rows, columns, amax, sums });
            }
        }
    }
    all
}

#[test]
fn every_source_gives_every_combination_of_outputs() {
    for kind in KINDS {
        for dtype in FLOATS {
            // Whole packs of columns over the borders of tiles, and odd sizes.
            for shape in [[144, 144], [33, 38]] {
                let (t, matrix) = (checked_bench(), Matrix { kind, dtype, shape, offset: 0 });
                let made = matrix.make(&t);
                for wanted in combinations() {
                    check(&t, matrix, &made, wanted);
                }
            }
        }
    }
}

#[test]
fn rows_as_wide_as_those_of_large_models_are_quantised_whole() {
    for (kind, columns) in [
        (Kind::Stored, 14336),
        (Kind::Glu(Gate::Silu), 14336),
        (Kind::GluBackward(Gate::Silu), 28672),
        (Kind::Stored, 28680),
    ] {
        for dtype in FLOATS {
            let (t, matrix) = (checked_bench(), Matrix { kind, dtype, shape: [3, columns], offset: 0 });
            let made = matrix.make(&t);
            for (rows, columns_too) in [(Scaling::Rows, None), (Scaling::Rows, Some((F8E4M3, Scaling::Tensor(0.01))))] {
                let wanted = Wanted { rows: Some((F8E4M3, rows)), columns: columns_too, amax: true, sums: None };
                check(&t, matrix, &made, wanted);
            }
        }
    }
}

#[test]
fn both_copies_with_a_scale_for_each_row_are_made_of_rows_of_any_width() {
    // Widths that one block has whole, that several share evenly and unevenly, and beyond what they can share. Rows in
    // whole groups of 32, with half a group left, and with an odd number left.
    for shape in [[64, 8], [48, 264], [32, 2048], [16, 2064], [80, 4624], [35, 4624], [48, 14336], [16, 16400]] {
        for (at, kind) in KINDS.into_iter().enumerate() {
            let dtype = FLOATS[(at + shape[0] / 16) % FLOATS.len()];
            let columns = if matches!(kind, Kind::GluBackward(_)) { 2 * shape[1] } else { shape[1] };
            let (t, matrix) = (checked_bench(), Matrix { kind, dtype, shape: [shape[0], columns], offset: 0 });
            let made = matrix.make(&t);
            for (types, amax, sums) in [([F8E5M2, F8E4M3], true, Some(true)), ([F8E4M3, F8E5M2], false, None)] {
                let (rows, columns) = (Some((types[0], Scaling::Rows)), Some((types[1], Scaling::Tensor(0.02))));
                check(&t, matrix, &made, Wanted { rows, columns, amax, sums });
            }
        }
    }
}

#[test]
fn each_cluster_takes_many_turns_with_the_rows_of_tall_matrices() {
    // On an H200 clusters of 1, 2, 4 and 8 blocks, each with several pieces of rows in turn and a part of the rest. The host
    // has no clusters and fewer rows.
    let share = if on_gpu() { 1 } else { 10 };
    for shape in [[26_400, 8], [13_120, 1032], [4_640, 2056], [2_080, 4224]] {
        let shape = [shape[0] / share, shape[1]];
        for kind in [Kind::Stored, Kind::ActivationBackward(ActivationKind::Gelu)] {
            let (t, matrix) = (checked_bench(), Matrix { kind, dtype: Bf16, shape, offset: 0 });
            let made = matrix.make(&t);
            let (rows, columns) = (Some((F8E4M3, Scaling::Rows)), Some((F8E5M2, Scaling::Tensor(0.02))));
            check(&t, matrix, &made, Wanted { rows, columns, amax: true, sums: Some(false) });
        }
    }
}

#[test]
fn a_stored_matrix_has_a_transposed_copy_with_a_scale_for_each_of_its_rows() {
    for dtype in FLOATS {
        for (shape, offset) in [([144, 144], 0), ([33, 38], 0), ([300, 70], 0), ([24, 16], 3), ([4400, 40], 0)] {
            let (t, matrix) = (checked_bench(), Matrix { kind: Kind::Stored, dtype, shape, offset });
            let made = matrix.make(&t);
            for rows in [None, Some((F8E4M3, Scaling::Rows)), Some((F8E5M2, Scaling::Tensor(0.7)))] {
                for (to, amax, sums) in [(F8E4M3, false, None), (F8E5M2, true, Some(true))] {
                    let columns = Some((to, Scaling::Rows));
                    check(&t, matrix, &made, Wanted { rows, columns, amax, sums });
                }
            }
        }
    }
}

#[test]
fn all_bf16_numbers_become_the_nearest_bytes_in_both_copies() {
    let t = checked_bench();
    let values: Vec<f64> = (0..=u16::MAX).map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect();
    for (dtype, input) in FLOATS.map(|dtype| (dtype, t.put(&[256, 256], dtype, &values))) {
        for (to, scale) in
            [(F8E4M3, 1.0f32), (F8E4M3, 0.37), (F8E4M3, 3e30), (F8E5M2, 1.0), (F8E5M2, 1e-30), (F8E5M2, 0.0)]
        {
            let copy = || Fp8Matrix {
                values: t.put_bytes(&[256, 256], to, &[0; 1 << 16]),
                scale: Scale::Tensor(t.put(&[1], F32, &[f64::from(scale)])),
            };
            let (rows, columns, amax) = (copy(), copy(), t.put(&[1], F32, &[0.0]));
            let source = QuantizeSource::Stored(input);
            let amax_too = Some(amax);
            t.run(Quantize {
                source,
                rows: Some(rows),
                columns: Some(columns),
                amax: amax_too,
                sums: None,
                accumulate: false,
            });
            let matrix = Matrix { kind: Kind::Stored, dtype, shape: [256, 256], offset: 0 };
            let format = Format::of(to);
            check_copy("row copy", &matrix, &t.get_bytes(&rows.values), &values, &[scale], &format);
            let bytes = t.get_bytes(&columns.values);
            check_copy("transposed copy", &matrix, &bytes, &transposed(&values, 256), &[scale], &format);
            assert!(t.get(&amax)[0].is_nan(), "NaN is the largest magnitude");
        }
    }
}

#[test]
fn rows_of_zeros_have_a_scale_of_1_and_rows_that_are_not_finite_show_it() {
    let t = checked_bench();
    for (dtype, to) in FLOATS.into_iter().flat_map(|dtype| [(dtype, F8E4M3), (dtype, F8E5M2)]) {
        for columns in [64, 13] {
            let format = Format::of(to);
            let mut values = numbers(1, 5 * columns, dtype);
            values[..columns].fill(0.0);
            values[columns] = f64::INFINITY;
            values[2 * columns + 3] = f64::NAN;
            // So small that a scale would be subnormal: it is the smallest normal number.
            values[3 * columns..4 * columns].iter_mut().for_each(|x| *x *= 1e-38);
            values.iter_mut().for_each(|x| *x = rounded(*x, dtype));
            let input = t.put(&[5, columns], dtype, &values);
            let copy = Fp8Matrix {
                values: t.put_bytes(&[5, columns], to, &vec![0; 5 * columns]),
                scale: Scale::Rows(t.empty(&[5], F32)),
            };
            let amax = t.put(&[1], F32, &[0.0]);
            t.run(Quantize {
                source: QuantizeSource::Stored(input),
                rows: Some(copy),
                columns: None,
                amax: Some(amax),
                sums: None,
                accumulate: false,
            });
            let (scales, bytes) = (t.device.download::<f32>(&copy.scale.tensor()).unwrap(), t.get_bytes(&copy.values));
            assert_eq!(scales[0], 1.0);
            assert!(bytes[..columns].iter().all(|byte| *byte == 0));
            assert!(scales[1].is_nan() && scales[2].is_nan(), "{scales:?}");
            assert!(bytes[columns..3 * columns].iter().all(|byte| format.number(*byte).is_nan()));
            assert_eq!(scales[3], f32::MIN_POSITIVE);
            assert!(scales[4].is_finite() && t.get(&amax)[0].is_nan());
            let matrix = Matrix { kind: Kind::Stored, dtype, shape: [2, columns], offset: 0 };
            check_copy("rows", &matrix, &bytes[3 * columns..], &values[3 * columns..], &scales[3..], &format);
        }
    }
}

#[test]
fn a_matrix_without_rows_has_sums_of_zero() {
    let t = checked_bench();
    for accumulate in [false, true] {
        let sums = t.put(&[6], F32, &[2.0; 6]);
        let source = QuantizeSource::Stored(t.put(&[0, 6], Bf16, &[]));
        t.run(Quantize { source, rows: None, columns: None, amax: None, sums: Some(sums), accumulate });
        assert_eq!(t.get(&sums), [if accumulate { 2.0 } else { 0.0 }; 6]);
    }
}

#[test]
fn a_scale_made_now_puts_the_largest_magnitude_at_the_largest_number() {
    for (kind, dtype) in KINDS.into_iter().flat_map(|kind| FLOATS.map(|dtype| (kind, dtype))) {
        for (shape, offset) in [([144, 144], 0), ([33, 38], 0), ([24, 16], 3), ([1100, 520], 0)] {
            let (t, matrix) = (checked_bench(), Matrix { kind, dtype, shape, offset });
            let (values, source) = matrix.make(&t);
            let peak = values.iter().fold(0.0f64, |peak, x| peak.max(x.abs()));
            for to in [F8E4M3, F8E5M2] {
                let largest = Format::of(to).largest();
                for (before, keep_known) in [(0.25, false), (0.25, true), (0.0, true)] {
                    let scale = t.put(&[1], F32, &[before]);
                    t.run(MakeScale { source, dtype: to, scale, keep_known });
                    let truth = if keep_known && before != 0.0 { before } else { peak / largest };
                    let off = (t.get(&scale)[0] - truth).abs();
                    assert!(off <= matrix.allowed(peak) / largest + 1e-7 * truth, "{matrix:?}: off by {off:e}");
                }
            }
        }
    }
}

#[test]
fn a_scale_made_of_zeros_is_not_known_and_one_of_what_is_not_finite_is_nan() {
    let t = checked_bench();
    for dtype in FLOATS {
        let made = |values: &[f64], keep_known| {
            let scale = t.put(&[1], F32, &[if keep_known { 0.0 } else { 0.25 }]);
            let source = QuantizeSource::Stored(t.put(&[2, values.len() / 2], dtype, values));
            t.run(MakeScale { source, dtype: F8E4M3, scale, keep_known });
            t.get(&scale)[0]
        };
        assert_eq!((made(&[0.0; 64], false), made(&[0.0; 64], true)), (0.0, 0.0));
        assert_eq!(made(&[1e-40; 64], false), f64::from(f32::MIN_POSITIVE));
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut values = numbers(1, 64, dtype);
            values[41] = x;
            assert!(made(&values, false).is_nan() && made(&values, true).is_nan(), "{x}");
        }
    }
}

fn random_matrix() -> impl Strategy<Value = Matrix> {
    let kind = prop::sample::select(KINDS.to_vec());
    let dtype = prop::sample::select(FLOATS.to_vec());
    // Sizes around the borders of packs and tiles, and any.
    let size = || prop_oneof![1usize..300, prop::sample::select(vec![8, 16, 64, 72, 128, 136, 256])];
    (kind, dtype, size(), size(), prop_oneof![Just(0), 1usize..17]).prop_map(|(kind, dtype, rows, columns, offset)| {
        let columns = if matches!(kind, Kind::GluBackward(_)) { columns.next_multiple_of(2) } else { columns };
        Matrix { kind, dtype, shape: [rows, columns], offset }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matrices_of_any_shape_at_any_address_are_quantised(
        matrix in random_matrix(),
        wanted in prop::sample::select(combinations()),
    ) {
        let t = checked_bench();
        check(&t, matrix, &matrix.make(&t), wanted);
    }
}
