//! 8-bit copies of matrices, and their scales.

mod blocks;

use crate::host::parts::{GateFunction, gelu, gelu_derivative, with_gate};
use crate::host::{CHUNK, HostKernel, Pool, column_sums, store_sums, view, with_float};
use crate::ops::{ActivationKind, BLOCK, Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
use crate::{DType, F8E4M3, F8E5M2, Float, bf16};
use blocks::make_block_scales;

/// Rows of one task. It adds up their column sums.
const SUM_ROWS: usize = 128;

impl HostKernel for Quantize {
    fn run(&self, pool: &Pool) {
        let (rows, columns) = self.source.dimensions();
        if rows == 0 || columns == 0 {
            return self.sums.iter().for_each(|sums| store_sums(&[], sums, self.accumulate));
        }
        let values = values(&self.source, pool);
        if let Some(amax) = &self.amax {
            let amax = &mut view::write::<f32>(amax)[0];
            *amax = larger(*amax, magnitude_of_all(&values, pool));
        }
        if let Some(copy) = &self.rows {
            let value = |row, column| values[row * columns + column];
            make_row_scales(copy, columns, value, pool);
            make_block_scales(copy, value, pool);
            store(copy, columns, value, pool);
        }
        if let Some(copy) = &self.columns {
            let value = |column, row| values[row * columns + column];
            make_row_scales(copy, rows, value, pool);
            make_block_scales(copy, value, pool);
            store(copy, rows, value, pool);
        }
        if let Some(sums) = &self.sums {
            let partial = pool.map(rows.div_ceil(SUM_ROWS), |chunk| {
                let rows = &values[chunk * SUM_ROWS * columns..values.len().min((chunk + 1) * SUM_ROWS * columns)];
                column_sums(columns, rows.chunks(columns), |x| *x)
            });
            store_sums(&partial, sums, self.accumulate);
        }
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        let (rows, columns) = self.source.dimensions();
        4 * rows * columns
    }
}

/// The matrix that is quantised, in f32.
pub(crate) fn values(source: &QuantizeSource, pool: &Pool) -> Vec<f32> {
    let (rows, columns) = source.dimensions();
    let mut values = vec![0.0; rows * columns];
    with_float!(source.dtype(), T => {
        let mut fill = |value: &(dyn Fn(usize) -> f32 + Sync)| {
            pool.for_each_chunk(&mut values, CHUNK, |chunk, out| {
                out.iter_mut().enumerate().for_each(|(i, out)| *out = value(chunk * CHUNK + i));
            });
        };
        match source {
            QuantizeSource::Stored(input) => {
                let x = view::read::<T>(input);
                fill(&|i| x[i].to_f32());
            }
            QuantizeSource::Rounded(input) => {
                let x = view::read::<T>(input);
                fill(&|i| bf16::from_f32(x[i].to_f32()).to_f32());
            }
            QuantizeSource::Norm { input, mean, rstd, weight, weight_offset, bias } => {
                let (x, rstds, weight) = (view::read::<T>(input), view::read::<f32>(rstd), view::read::<T>(weight));
                let means = mean.as_ref().map(view::read::<f32>);
                let bias = bias.as_ref().map(view::read::<T>);
                fill(&|i| {
                    let (row, column) = (i / columns, i % columns);
                    let (mean, shift) = (means.map_or(0.0, |m| m[row]), bias.map_or(0.0, |b| b[column].to_f32()));
                    (x[i].to_f32() - mean) * rstds[row] * (weight_offset + weight[column].to_f32()) + shift
                });
            }
            QuantizeSource::Activation { kind, input } => {
                let x = view::read::<T>(input);
                match kind {
                    ActivationKind::Gelu => fill(&|i| gelu(x[i].to_f32())),
                    ActivationKind::Relu => fill(&|i| match x[i].to_f32() {
                        x if x <= 0.0 => 0.0,
                        x => x,
                    }),
                }
            }
            QuantizeSource::ActivationBackward { kind, input, grad_output } => {
                let (x, grad) = (view::read::<T>(input), view::read::<T>(grad_output));
                match kind {
                    ActivationKind::Gelu => fill(&|i| grad[i].to_f32() * gelu_derivative(x[i].to_f32())),
                    ActivationKind::Relu => fill(&|i| if x[i].to_f32() > 0.0 { grad[i].to_f32() } else { 0.0 }),
                }
            }
            QuantizeSource::Glu { gate, input } => {
                let x = view::read::<T>(input);
                with_gate!(*gate, of => fill(&|i| {
                    let gate = i / columns * 2 * columns + i % columns;
                    of.value(x[gate].to_f32()) * of.other(x[gate + columns].to_f32())
                }));
            }
            QuantizeSource::GluBackward { gate, input, grad_output } => {
                let (x, grad, half) = (view::read::<T>(input), view::read::<T>(grad_output), columns / 2);
                with_gate!(*gate, of => fill(&|i| {
                    let (row, column) = (i / columns, i % columns);
                    let gate = row * columns + column % half;
                    let (g, u) = (x[gate].to_f32(), x[gate + half].to_f32());
                    let dy = grad[row * half + column % half].to_f32();
                    match column < half {
                        true => dy * of.other(u) * of.derivative(g),
                        false => dy * of.value(g) * of.other_derivative(u),
                    }
                }));
            }
        }
    });
    values
}

/// Makes the scales of the rows of a copy `(_, width)` of `value(row, column)`, if it has such scales.
fn make_row_scales(copy: &Fp8Matrix, width: usize, value: impl Fn(usize, usize) -> f32 + Sync, pool: &Pool) {
    let Scale::Rows(scales) = copy.scale else { return };
    let largest = copy.values.dtype.largest_fp8();
    pool.for_each_chunk(view::write::<f32>(&scales), 1, |row, scale| {
        let amax = (0..width).fold(0.0, |amax, column| larger(amax, value(row, column).abs()));
        scale[0] = scale_now(amax, largest, 0);
    });
}

/// Stores a copy `(_, width)` of `value(row, column)`.
fn store(copy: &Fp8Matrix, width: usize, value: impl Fn(usize, usize) -> f32 + Sync, pool: &Pool) {
    match copy.values.dtype {
        DType::F8E5M2 => store_as::<F8E5M2>(copy, width, value, pool),
        _ => store_as::<F8E4M3>(copy, width, value, pool),
    }
}

fn store_as<T: Float>(copy: &Fp8Matrix, width: usize, value: impl Fn(usize, usize) -> f32 + Sync, pool: &Pool) {
    let scales = view::read::<f32>(&copy.scale.tensor());
    pool.for_each_chunk(view::write::<T>(&copy.values), width, |row, out| {
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let scale = scales[copy.scale.index(row, block)];
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let store = |(i, out): (usize, &mut T)| *out = T::from_f32(value(row, block * BLOCK + i) * inverse);
            out.iter_mut().enumerate().for_each(store);
        }
    });
}

impl HostKernel for MakeScale {
    fn run(&self, pool: &Pool) {
        let scale = &mut view::write::<f32>(&self.scale)[0];
        if self.keep_known && *scale != 0.0 {
            return;
        }
        let amax = magnitude_of_all(&values(&self.source, pool), pool);
        *scale = if amax == 0.0 { 0.0 } else { scale_now(amax, self.dtype.largest_fp8(), 0) };
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        let (rows, columns) = self.source.dimensions();
        4 * rows * columns
    }
}

impl HostKernel for UpdateScales {
    fn run(&self, _pool: &Pool) {
        let (amax, scale) = (view::write::<f32>(&self.amax), view::write::<f32>(&self.scale));
        let largest = view::read::<f32>(&self.largest);
        let length = self.history.shape.last();
        let histories = view::write::<f32>(&self.history).chunks_mut(length);
        for (((amax, scale), largest), history) in amax.iter_mut().zip(scale).zip(largest).zip(histories) {
            if *amax > 0.0 && amax.is_finite() {
                history.copy_within(..length - 1, 1);
                history[0] = *amax;
            }
            let peak = history.iter().copied().fold(0.0, f32::max);
            if peak > 0.0 {
                *scale = scale_now(peak, *largest, self.margin);
            } else if *scale == 0.0 || !scale.is_finite() {
                *scale = self.default;
            }
            *amax = 0.0;
        }
    }
}

/// The scale that makes the largest magnitude the largest number of the type. It is 1 for a matrix of zeros. It is NaN
/// if a value is not finite, so that all products of the matrix show it. It is never so small that its inverse is
/// infinite.
fn scale_now(amax: f32, largest: f32, margin: i32) -> f32 {
    if amax == 0.0 {
        1.0
    } else if amax.is_finite() {
        (amax * 2f32.powi(margin) / largest).max(f32::MIN_POSITIVE)
    } else {
        f32::NAN
    }
}

/// [`magnitude`] of a whole matrix.
fn magnitude_of_all(values: &[f32], pool: &Pool) -> f32 {
    let of_chunk = |chunk: usize| magnitude(&values[chunk * CHUNK..values.len().min((chunk + 1) * CHUNK)]);
    magnitude(&pool.map(values.len().div_ceil(CHUNK), of_chunk))
}

/// The largest magnitude; NaN and infinity are larger than all numbers.
fn magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |amax, x| larger(amax, x.abs()))
}

/// The larger of two numbers that are not negative, in the order of their bits: infinity above all numbers, NaN above that.
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    f32::from_bits(a.to_bits().max(b.to_bits()))
}
