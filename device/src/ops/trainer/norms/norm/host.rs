//! Normalisation: one task per block of rows.

use crate::host::parts::sum;
use crate::host::{HostKernel, Pool, column_sums, store_sums, view, with_float};
use crate::ops::{Norm, NormBackward, NormKind};
use crate::{Float, Tensor};

/// Rows of one task.
const ROWS: usize = 64;

impl HostKernel for Norm {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => forward::<T>(self, pool));
    }
}

fn forward<T: Float>(op: &Norm, pool: &Pool) {
    let hidden = op.input.shape.last();
    if let (Some(residual), Some(total)) = (&op.residual, &op.sum) {
        let (input, residual) = (view::read::<T>(&op.input), view::read::<T>(residual));
        crate::host::map::<T>(total, pool, |i| input[i].to_f32() + residual[i].to_f32());
    }
    let x = view::read::<T>(&op.sum.unwrap_or(op.input));
    let layer = op.kind == NormKind::Layer;
    // Mean and rstd of each row first, so that the wide loop below writes one output.
    let row = |r: usize| &x[r * hidden..(r + 1) * hidden];
    let rstd = view::write::<f32>(&op.rstd);
    if let Some(mean) = &op.mean {
        pool.for_each_chunk(view::write::<f32>(mean), ROWS, |chunk, means| {
            for (i, mean) in means.iter_mut().enumerate() {
                let row = row(chunk * ROWS + i);
                // Relative to the first number: the mean of equal numbers is that number, and with a small eps the rounding
                // of a sum of thousands would count as variance.
                let first = row[0].to_f32();
                *mean = first + sum(hidden, |c| row[c].to_f32() - first) / hidden as f32;
            }
        });
    }
    let means: &[f32] = op.mean.as_ref().map_or(&[], view::read::<f32>);
    pool.for_each_chunk(rstd, ROWS, |chunk, rstds| {
        for (i, rstd) in rstds.iter_mut().enumerate() {
            let r = chunk * ROWS + i;
            let (row, mean) = (row(r), if layer { means[r] } else { 0.0 });
            let square = |c: usize| {
                let centred = row[c].to_f32() - mean;
                centred * centred
            };
            *rstd = 1.0 / (sum(hidden, square) / hidden as f32 + op.eps).sqrt();
        }
    });
    let Some(output) = &op.output else { return };
    let weight = view::read::<T>(&op.weight);
    let bias = op.bias.as_ref().map(view::read::<T>);
    let (rstds, offset) = (view::read::<f32>(&op.rstd), op.kind.weight_offset());
    pool.for_each_chunk(view::write::<T>(output), ROWS * hidden, |chunk, out| {
        for (i, out) in out.chunks_mut(hidden).enumerate() {
            let r = chunk * ROWS + i;
            let (row, rstd, mean) = (row(r), rstds[r], if layer { means[r] } else { 0.0 });
            for c in 0..hidden {
                let shift = bias.map_or(0.0, |bias| bias[c].to_f32());
                out[c] = T::from_f32((row[c].to_f32() - mean) * rstd * (offset + weight[c].to_f32()) + shift);
            }
        }
    });
}

impl HostKernel for NormBackward {
    /// The first part is the whole sum, the others are 0.
    fn run(&self, pool: &Pool) {
        with_float!(self.grad_input.dtype, T => backward::<T>(self, pool));
    }
}

fn backward<T: Float>(op: &NormBackward, pool: &Pool) {
    // First, since `grad_input` may overwrite `grad_residual`.
    if let Some((residual, parts)) = op.grad_residual.zip(op.residual_parts) {
        column_parts::<T>(view::read(&residual), &parts, pool);
    }
    let hidden = op.input.shape.last();
    let (x, dy, weight) = (view::read::<T>(&op.input), view::read::<T>(&op.grad_output), view::read::<T>(&op.weight));
    let rstds = view::read::<f32>(&op.rstd);
    let means: &[f32] = op.mean.as_ref().map_or(&[], view::read::<f32>);
    let (layer, offset) = (op.kind == NormKind::Layer, op.kind.weight_offset());
    let in_place = op.grad_residual.is_some_and(|residual| residual.address == op.grad_input.address);
    let residual = op.grad_residual.filter(|_| !in_place).as_ref().map(view::read::<T>);
    let rows = x.len() / hidden.max(1);
    pool.for_each_chunk(view::write::<T>(&op.grad_input), ROWS * hidden, |chunk, out| {
        for (i, out) in out.chunks_mut(hidden).enumerate() {
            let r = chunk * ROWS + i;
            let (x, dy) = (&x[r * hidden..(r + 1) * hidden], &dy[r * hidden..(r + 1) * hidden]);
            let (rstd, mean) = (rstds[r], if layer { means[r] } else { 0.0 });
            let scaled = |c: usize| dy[c].to_f32() * (offset + weight[c].to_f32());
            let normed = |c: usize| (x[c].to_f32() - mean) * rstd;
            let mean_scaled = if layer { sum(hidden, scaled) / hidden as f32 } else { 0.0 };
            let mean_product = sum(hidden, |c| scaled(c) * normed(c)) / hidden as f32;
            for c in 0..hidden {
                let through = (scaled(c) - mean_scaled - normed(c) * mean_product) * rstd;
                let past = match residual {
                    Some(residual) => residual[r * hidden + c].to_f32(),
                    None if in_place => out[c].to_f32(),
                    None => 0.0,
                };
                out[c] = T::from_f32(through + past);
            }
        }
    });
    if let Some(parts) = &op.weight_parts {
        let partial = pool.map(rows.div_ceil(ROWS), |chunk| {
            let mut sums = vec![0.0f32; hidden];
            for r in chunk * ROWS..rows.min((chunk + 1) * ROWS) {
                let (rstd, mean) = (rstds[r], if layer { means[r] } else { 0.0 });
                let (x, dy) = (&x[r * hidden..(r + 1) * hidden], &dy[r * hidden..(r + 1) * hidden]);
                for c in 0..hidden {
                    sums[c] += dy[c].to_f32() * (x[c].to_f32() - mean) * rstd;
                }
            }
            sums
        });
        store_parts(&partial, parts);
    }
    if let Some(parts) = &op.bias_parts {
        column_parts::<T>(dy, parts, pool);
    }
}

/// Sums of the columns of `values`.
fn column_parts<T: Float>(values: &[T], parts: &Tensor, pool: &Pool) {
    let hidden = parts.shape.last();
    let partial = pool.map(values.len().div_ceil(ROWS * hidden), |chunk| {
        let rows = &values[chunk * ROWS * hidden..values.len().min((chunk + 1) * ROWS * hidden)];
        column_sums(hidden, rows.chunks(hidden), |x| x.to_f32())
    });
    store_parts(&partial, parts);
}

fn store_parts(partial: &[Vec<f32>], parts: &Tensor) {
    view::write::<f32>(parts).fill(0.0);
    store_sums(partial, &parts.at(0), false);
}
