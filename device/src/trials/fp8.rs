//! Trials of 8-bit copies with one scale or a scale a row, and of the operations around them.

use super::case::Trials;
use super::workbench::Workbench;
use crate::ops::{
    ActivationKind, CountQuantized, Fp8Matrix, Gate, MakeScale, NormKind, Quantize, QuantizeCounts, QuantizeSource,
    Scale, SumCounts, TransposeFp8, UpdateScales,
};
use crate::{DType, Result, Tensor};

/// Makes the source of a copy, a matrix of this height and width.
pub(super) type MakeSource = fn(&mut Workbench, usize, usize) -> Result<QuantizeSource>;

/// Every kind of matrix.
pub(super) const SOURCES: [(&str, MakeSource); 11] = [
    ("stored", |bench, rows, width| Ok(QuantizeSource::Stored(wide(bench, rows, width)?))),
    ("rounded", |bench, rows, width| Ok(QuantizeSource::Rounded(bench.scaled([rows, width], DType::F32, 3.0)?))),
    ("layer norm", |bench, rows, width| norm(bench, rows, width, NormKind::Layer)),
    ("rms norm", |bench, rows, width| norm(bench, rows, width, NormKind::Rms)),
    ("rms norm of 1 + weight", |bench, rows, width| norm(bench, rows, width, NormKind::Rms1p)),
    ("gelu", |bench, rows, width| {
        Ok(QuantizeSource::Activation { kind: ActivationKind::Gelu, input: wide(bench, rows, width)? })
    }),
    ("gelu_backward", |bench, rows, width| {
        let (input, grad_output) = (wide(bench, rows, width)?, wide(bench, rows, width)?);
        Ok(QuantizeSource::ActivationBackward { kind: ActivationKind::Gelu, input, grad_output })
    }),
    ("swiglu", |bench, rows, width| glu(bench, rows, width, Gate::Silu)),
    ("swiglu_backward", |bench, rows, width| glu_backward(bench, rows, width, Gate::Silu)),
    ("geglu", |bench, rows, width| glu(bench, rows, width, Gate::Gelu)),
    ("geglu_backward", |bench, rows, width| glu_backward(bench, rows, width, Gate::Gelu)),
];

/// All trials of 8-bit copies with one scale or a scale a row. Sizes are multiples of 16.
pub(super) fn trials(rows: usize, width: usize, to: &mut Trials) {
    every_kind(rows, width, to);
    variants(rows, width, to);
    counts(rows, width, to);
    transposes_and_scales(rows, width, to);
}

/// Copies of every kind of matrix, and their scales.
fn every_kind(rows: usize, width: usize, to: &mut Trials) {
    for (name, make) in SOURCES {
        for (dtype, per_row) in [(DType::F8E4M3, false), (DType::F8E5M2, false), (DType::F8E4M3, true)] {
            let scales = if per_row { "a scale a row" } else { "one scale" };
            to.add(&format!("quantize {name} to {dtype}, {scales}"), move |bench| {
                let source = make(bench, rows, width)?;
                let given = Scale::Tensor(bench.between([1], 0.01, 0.02)?);
                let scale = if per_row { Scale::Rows(bench.output([rows], DType::F32)?) } else { given };
                let copy = Fp8Matrix { values: bench.output([rows, width], dtype)?, scale };
                let transposed = Fp8Matrix { values: bench.output([width, rows], dtype)?, scale: given };
                let amax = Some(bench.between([1], 0.0, 1e-3)?);
                let sums = Some(bench.output([width], DType::F32)?);
                let (rows, columns) = (Some(copy), Some(transposed));
                Ok(Quantize { source, rows, columns, amax, sums, accumulate: false })
            });
        }
        to.add(&format!("make_scale of {name}"), move |bench| {
            let source = make(bench, rows, width)?;
            let scale = bench.output([1], DType::F32)?;
            Ok(MakeScale { source, dtype: DType::F8E4M3, scale, keep_known: false })
        });
    }
}

/// Copies of one kind of matrix in other ways.
fn variants(rows: usize, width: usize, to: &mut Trials) {
    for (label, known) in [("", 0.0), (" that is known", 0.02)] {
        to.add(&format!("make_scale, kept{label}"), move |bench| {
            let source = QuantizeSource::Stored(wide(bench, rows, width)?);
            let scale = bench.between([1], known, known)?;
            Ok(MakeScale { source, dtype: DType::F8E4M3, scale, keep_known: true })
        });
    }
    for (label, transposes) in [("rows", false), ("columns", true)] {
        to.add(&format!("quantize, {label} alone"), move |bench| {
            let source = QuantizeSource::Stored(wide(bench, rows, width)?);
            let scale = Scale::Tensor(bench.between([1], 0.01, 0.02)?);
            let shape = if transposes { [width, rows] } else { [rows, width] };
            let copy = Fp8Matrix { values: bench.output(shape, DType::F8E4M3)?, scale };
            let (rows, columns) = if transposes { (None, Some(copy)) } else { (Some(copy), None) };
            Ok(Quantize { source, rows, columns, amax: None, sums: None, accumulate: false })
        });
    }
    to.add("quantize, sums accumulated", move |bench| {
        let source = QuantizeSource::Stored(wide(bench, rows, width)?);
        let scale = Scale::Tensor(bench.between([1], 0.01, 0.02)?);
        let copy = |values| Some(Fp8Matrix { values, scale });
        let columns = copy(bench.output([width, rows], DType::F8E5M2)?);
        let (rows, sums) = (copy(bench.output([rows, width], DType::F8E5M2)?), bench.input([width], DType::F32)?);
        Ok(Quantize { source, rows, columns, amax: None, sums: Some(sums), accumulate: true })
    });
}

/// Counts of the values that a copy loses.
fn counts(rows: usize, width: usize, to: &mut Trials) {
    to.add("count_quantized, a scale a row", move |bench| {
        let source = QuantizeSource::Stored(wide(bench, rows, width)?);
        let values = bench.scaled([rows, width], DType::F8E4M3, 0.01)?;
        let copy = Fp8Matrix { values, scale: Scale::Rows(bench.between([rows], 0.01, 0.02)?) };
        Ok(CountQuantized { source, copy, counts: bench.block(&QuantizeCounts::default())? })
    });
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        to.add(&format!("count_quantized, {dtype}"), move |bench| {
            let source = QuantizeSource::Stored(bench.scaled([rows, width], DType::Bf16, 3.0)?);
            // The largest values are beyond the largest number, and bytes of 0 are among the others.
            let scale = Scale::Tensor(bench.between([1], 2.0 / dtype.largest_fp8(), 2.1 / dtype.largest_fp8())?);
            let copy = Fp8Matrix { values: bench.scaled([rows, width], dtype, 0.01)?, scale };
            Ok(CountQuantized { source, copy, counts: bench.block(&QuantizeCounts::default())? })
        });
    }
    to.add("sum_counts", |bench| {
        let of = |i: u64| QuantizeCounts { values: 1000 + i, saturated: i, underflowed: 2 * i, ..Default::default() };
        let counts: [QuantizeCounts; 96] = std::array::from_fn(|i| of(i as u64));
        Ok(SumCounts { counts: bench.block(&counts)?, sums: bench.output([3, 3], DType::F32)? })
    });
}

fn transposes_and_scales(rows: usize, width: usize, to: &mut Trials) {
    to.add("transpose_fp8", move |bench| {
        let input = bench.scaled([rows, width], DType::F8E4M3, 200.0)?;
        Ok(TransposeFp8 { input, output: bench.output([width, rows], DType::F8E4M3)? })
    });
    to.add("quantize a weight, scales for rows and columns", move |bench| {
        let source = QuantizeSource::Stored(wide(bench, rows, width)?);
        let mut copy = |shape: [usize; 2]| {
            let scale = Scale::Rows(bench.output([shape[0]], DType::F32)?);
            Ok::<_, crate::Error>(Fp8Matrix { values: bench.output(shape, DType::F8E4M3)?, scale })
        };
        let (rows, columns) = (Some(copy([rows, width])?), Some(copy([width, rows])?));
        Ok(Quantize { source, rows, columns, amax: None, sums: None, accumulate: false })
    });
    to.add("update_scales", |bench| {
        let (tensors, length) = (70, 40);
        let amax = bench.between([tensors], 0.0, 5.0)?;
        let history = bench.between([tensors, length], 0.0, 4.0)?;
        let (largest, scale) = (bench.between([tensors], 448.0, 448.5)?, bench.between([tensors], 0.1, 0.2)?);
        Ok(UpdateScales { amax, history, largest, scale, margin: 1, default: 1.0 })
    });
}

/// The values of a norm. A LayerNorm has means and a bias.
fn norm(bench: &mut Workbench, rows: usize, width: usize, kind: NormKind) -> Result<QuantizeSource> {
    let (mean, bias) = match kind {
        NormKind::Layer => (Some(bench.between([rows], -0.5, 0.5)?), Some(bench.scaled([width], DType::Bf16, 1.0)?)),
        NormKind::Rms | NormKind::Rms1p => (None, None),
    };
    let (input, weight) = (wide(bench, rows, width)?, bench.scaled([width], DType::Bf16, 1.0)?);
    let (rstd, weight_offset) = (bench.between([rows], 0.5, 2.0)?, kind.weight_offset());
    Ok(QuantizeSource::Norm { input, mean, rstd, weight, weight_offset, bias })
}

fn glu(bench: &mut Workbench, rows: usize, width: usize, gate: Gate) -> Result<QuantizeSource> {
    Ok(QuantizeSource::Glu { gate, input: wide(bench, rows, 2 * width)? })
}

fn glu_backward(bench: &mut Workbench, rows: usize, width: usize, gate: Gate) -> Result<QuantizeSource> {
    let (input, grad_output) = (wide(bench, rows, width)?, wide(bench, rows, width / 2)?);
    Ok(QuantizeSource::GluBackward { gate, input, grad_output })
}

fn wide(bench: &mut Workbench, rows: usize, width: usize) -> Result<Tensor> {
    bench.scaled([rows, width], DType::Bf16, 3.0)
}
