//! Counts of losses in 8-bit copies, against the values and the bytes of the copies, on the host or with
//! `TEST_DEVICE=cuda` on a GPU.

use super::quantize_reference::{Format, KINDS, Kind, Matrix};
use crate::common::{Bench, checked_bench};
use device::DType;
use device::DType::{Bf16, F8E4M3, F8E5M2, F32};
use device::ops::*;

/// The counts for these values and bytes. Values beyond `edge` times the scale saturate.
fn counted(values: &[f64], bytes: &[u8], edge: f64) -> QuantizeCounts {
    let mut counts = QuantizeCounts { values: values.len() as u64, ..QuantizeCounts::default() };
    for (x, byte) in values.iter().zip(bytes) {
        let x = x.abs();
        counts.zeros += u64::from(x == 0.0);
        counts.not_finite += u64::from(!x.is_finite());
        counts.saturated += u64::from(x.is_finite() && x > edge);
        counts.underflowed += u64::from(x > 0.0 && x.is_finite() && byte & 0x7f == 0);
    }
    counts
}

fn copy(t: &Bench, shape: [usize; 2], dtype: DType, scale: Scale) -> Fp8Matrix {
    Fp8Matrix { values: t.put_bytes(&shape, dtype, &vec![0xff; shape[0] * shape[1]]), scale }
}

fn quantize(t: &Bench, source: QuantizeSource, copy: Fp8Matrix) {
    t.run(Quantize { source, rows: Some(copy), columns: None, amax: None, sums: None, accumulate: false });
}

/// Half of the step above the largest number, from the definition of the type.
fn edge(dtype: DType) -> f64 {
    let format = Format::of(dtype);
    let (byte, largest) = (format.nearest(f64::MAX), format.largest());
    largest + (largest - format.number(byte - 1)) / 2.0
}

#[test]
fn counts_are_those_of_the_values_and_of_the_bytes_of_their_copy() {
    for dtype in [F8E4M3, F8E5M2] {
        for (shape, offset) in [([3, 8], 0), ([33, 72], 0), ([130, 46], 0), ([17, 10], 1)] {
            for kind in KINDS {
                let t = checked_bench();
                let matrix = Matrix { kind, dtype: if offset == 1 { F32 } else { Bf16 }, shape, offset };
                let (values, source) = matrix.make(&t);
                let peak = values.iter().fold(0.0f64, |peak, x| peak.max(x.abs()));
                // Scales at which a quarter of the largest value saturates, and at which it underflows.
                let smallest = Format::of(dtype).number(1);
                for scale in [peak / 4.0 / edge(dtype), peak / 2.0 / smallest] {
                    let scale_t = t.put(&[1], F32, &[scale]);
                    let copy = copy(&t, shape, dtype, Scale::Tensor(scale_t));
                    quantize(&t, source, copy);
                    let before = QuantizeCounts { values: 1 << 40, saturated: 7, ..QuantizeCounts::default() };
                    let counts = t.block(&before);
                    t.run(CountQuantized { source, copy, counts });
                    let found: QuantizeCounts = t.get_block(&counts);
                    let truth = counted(&values, &t.get_bytes(&copy.values), edge(dtype) * f64::from(scale as f32));
                    let (saturated, underflowed) = (found.saturated - 7, found.underflowed);
                    assert_eq!(found.values, (1 << 40) + truth.values, "{matrix:?}");
                    // Computed values may lie on the other side of a border than in f64.
                    let off = if kind == Kind::Stored { 0 } else { 2 };
                    for (what, found, truth) in [
                        ("zeros", found.zeros, truth.zeros),
                        ("not finite", found.not_finite, 0),
                        ("saturated", saturated, truth.saturated),
                        ("underflowed", underflowed, truth.underflowed),
                    ] {
                        assert!(found.abs_diff(truth) <= off, "{what} of {matrix:?} to {dtype}: {found}, not {truth}");
                    }
                    let few = values.len() < 100;
                    assert!(few || saturated + underflowed > 0, "{matrix:?} loses something at scale {scale}");
                }
            }
        }
    }
}

#[test]
fn extremes_are_counted_as_what_they_are() {
    for dtype in [F8E4M3, F8E5M2] {
        let t = checked_bench();
        let edge = edge(dtype);
        let smallest = Format::of(dtype).number(1);
        let values = [
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            edge,
            -edge,
            1.001 * edge,
            -2.0 * edge,
            1e38,
            smallest,
            0.51 * smallest,
            -0.49 * smallest,
            1e-30,
            -1e-40,
            1.0,
        ];
        let source = QuantizeSource::Stored(t.put(&[2, 8], F32, &values));
        let copy = copy(&t, [2, 8], dtype, Scale::Tensor(t.put(&[1], F32, &[1.0])));
        quantize(&t, source, copy);
        let counts = t.block(&QuantizeCounts::default());
        t.run(CountQuantized { source, copy, counts });
        let truth = QuantizeCounts { values: 16, zeros: 2, not_finite: 3, saturated: 3, underflowed: 3 };
        assert_eq!(t.get_block::<QuantizeCounts>(&counts), truth, "{dtype}");
        // A scale that is not known yet makes all values 0; one for each row fits its values.
        let unknown = self::copy(&t, [2, 8], dtype, Scale::Tensor(t.put(&[1], F32, &[0.0])));
        quantize(&t, source, unknown);
        let counts = t.block(&QuantizeCounts::default());
        t.run(CountQuantized { source, copy: unknown, counts });
        let all = t.get_block::<QuantizeCounts>(&counts);
        assert_eq!((all.underflowed, all.saturated), (11, 0), "{dtype}");
        let per_row = self::copy(&t, [2, 8], dtype, Scale::Rows(t.put(&[2], F32, &[0.0, 0.0])));
        let finite = QuantizeSource::Stored(t.put(&[2, 8], F32, &[5e4; 16]));
        quantize(&t, finite, per_row);
        let counts = t.block(&QuantizeCounts::default());
        t.run(CountQuantized { source: finite, copy: per_row, counts });
        let rows = t.get_block::<QuantizeCounts>(&counts);
        assert_eq!(rows, QuantizeCounts { values: 16, ..QuantizeCounts::default() }, "{dtype}");
    }
}

#[test]
fn sums_of_counts_are_by_kind() {
    let t = checked_bench();
    let of = |i: u64| QuantizeCounts { values: 1 << 33, zeros: i, not_finite: i, saturated: 3 * i, underflowed: i * i };
    let counts: [QuantizeCounts; 48] = std::array::from_fn(|i| of(i as u64));
    let counts = t.block(&counts);
    let sums = t.empty(&[3, 3], F32);
    t.run(SumCounts { counts, sums });
    let sum = |kind: u64, count: fn(u64) -> u64| (0..16).map(|i| count(3 * i + kind)).sum::<u64>() as f64;
    let of_kind = |kind| [16.0 * 2f64.powi(33), sum(kind, |i| 3 * i), sum(kind, |i| i * i)];
    assert_eq!(t.get(&sums), [0, 1, 2].map(of_kind).concat());
}
