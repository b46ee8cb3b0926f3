//! Normalisation of queries and keys, head by head.

use crate::host::parts::sum;
use crate::host::{HostKernel, Pool, store_sums, to_f32, view, with_float};
use crate::ops::{AttentionSizes, HeadNorm, HeadNormBackward};
use crate::{Float, Tensor};

/// Rows of one task. It sums their gradients of weights.
const ROWS: usize = 16;

impl HostKernel for HeadNorm {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => forward::<T>(self, pool));
    }
}

fn forward<T: Float>(op: &HeadNorm, pool: &Pool) {
    let sizes = AttentionSizes::new(&op.input, op.heads, op.kv_heads);
    let (dim, width) = (sizes.dim, sizes.packed_width());
    let input = view::read::<T>(&op.input);
    let weights = [&op.query_weight, &op.key_weight].map(|weight| offset_weight(weight, op.weight_offset));
    let table = op.table.as_ref().map(view::read::<f32>);
    pool.for_each_chunk(view::write::<T>(&op.output), width, |row, output| {
        let input = &input[row * width..][..width];
        let (turned, values) = output.split_at_mut((op.heads + op.kv_heads) * dim);
        values.copy_from_slice(&input[turned.len()..]);
        let mut normed = vec![0.0; dim];
        for (head, output) in turned.chunks_mut(dim).enumerate() {
            let (x, weight) = (&input[head * dim..][..dim], &weights[usize::from(head >= op.heads)]);
            let rstd = rstd(x, op.eps);
            normed.iter_mut().enumerate().for_each(|(c, y)| *y = x[c].to_f32() * rstd * weight[c]);
            if let Some(table) = table {
                rotate(&mut normed, angles(table, row % sizes.seq, dim), 1.0);
            }
            output.iter_mut().zip(&normed).for_each(|(output, y)| *output = T::from_f32(*y));
        }
    });
}

impl HostKernel for HeadNormBackward {
    fn run(&self, pool: &Pool) {
        with_float!(self.input.dtype, T => backward::<T>(self, pool));
    }
}

fn backward<T: Float>(op: &HeadNormBackward, pool: &Pool) {
    let sizes = AttentionSizes::new(&op.input, op.heads, op.kv_heads);
    let (dim, width) = (sizes.dim, sizes.packed_width());
    let input = view::read::<T>(&op.input);
    let weights = [&op.query_weight, &op.key_weight].map(|weight| offset_weight(weight, op.weight_offset));
    let table = op.table.as_ref().map(view::read::<f32>);
    let rows = op.input.shape.rows();
    // Of queries and of keys, for each task.
    let mut partial = vec![[vec![0.0; dim], vec![0.0; dim]]; rows.div_ceil(ROWS)];
    let grads = (view::write::<T>(&op.grad), ROWS * width);
    pool.for_each_chunk_pair(grads, (&mut partial[..], 1), |chunk, grads, sums| {
        let mut dy = vec![0.0; dim];
        for (i, grads) in grads.chunks_mut(width).enumerate() {
            let row = chunk * ROWS + i;
            let input = &input[row * width..][..width];
            for (head, grad) in grads.chunks_mut(dim).take(op.heads + op.kv_heads).enumerate() {
                let kind = usize::from(head >= op.heads);
                let (x, weight, sums) = (&input[head * dim..][..dim], &weights[kind], &mut sums[0][kind]);
                let rstd = rstd(x, op.eps);
                let normed = |c: usize| x[c].to_f32() * rstd;
                dy.iter_mut().zip(grad.iter()).for_each(|(dy, grad)| *dy = grad.to_f32());
                if let Some(table) = table {
                    rotate(&mut dy, angles(table, row % sizes.seq, dim), -1.0);
                }
                let mean_product = sum(dim, |c| dy[c] * weight[c] * normed(c)) / dim as f32;
                for c in 0..dim {
                    sums[c] += dy[c] * normed(c);
                    grad[c] = T::from_f32((dy[c] * weight[c] - normed(c) * mean_product) * rstd);
                }
            }
        }
    });
    for (kind, output) in [op.grad_query_weight, op.grad_key_weight].iter().enumerate() {
        let Some(output) = output else { continue };
        let sums: Vec<Vec<f32>> = partial.iter_mut().map(|sums| std::mem::take(&mut sums[kind])).collect();
        store_sums(&sums, output, op.accumulate);
    }
}

/// A weight plus its offset.
fn offset_weight(weight: &Tensor, offset: f32) -> Vec<f32> {
    to_f32(weight).iter().map(|weight| offset + weight).collect()
}

fn rstd<T: Float>(x: &[T], eps: f32) -> f32 {
    let square = |c: usize| x[c].to_f32() * x[c].to_f32();
    1.0 / (sum(x.len(), square) / x.len() as f32 + eps).sqrt()
}

/// Cosines and sines of a position.
fn angles(table: &[f32], position: usize, dim: usize) -> &[f32] {
    &table[position * dim..][..dim]
}

/// Turns channel `i` with `i + head_dim / 2`; `sign` -1 turns back.
fn rotate(head: &mut [f32], angles: &[f32], sign: f32) {
    let (first, second) = head.split_at_mut(angles.len() / 2);
    for (i, (a, b)) in first.iter_mut().zip(second).enumerate() {
        let (cos, sin) = (angles[2 * i], sign * angles[2 * i + 1]);
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}
