//! Losses.

use super::elementwise::with_float;
use super::math::{exp, max, sum};
use super::{Pool, view};
use crate::Float;
use crate::ops::{Control, CrossEntropy, Mse, SumInto};

/// See [`CrossEntropy`].
pub(super) fn cross_entropy(op: &CrossEntropy, pool: &Pool) {
    with_float!(op.logits.dtype, T => rows::<T>(op, pool));
}

fn rows<T: Float>(op: &CrossEntropy, pool: &Pool) {
    let (columns, vocab) = (op.logits.shape.last(), op.vocab);
    let targets = view::read::<i32>(&op.targets);
    let target = |row: usize| usize::try_from(targets[row]).ok().filter(|&target| target < vocab);
    let losses = view::write::<f32>(&op.losses);
    // -> (loss, log-sum-exp) of a row
    let loss = |row: usize, logits: &[T]| {
        let highest = max(vocab, |c| logits[c].to_f32());
        let lse = highest + sum(vocab, |c| exp(logits[c].to_f32() - highest)).ln();
        (target(row).map_or(0.0, |target| lse - logits[target].to_f32()), lse)
    };
    let Some(control) = &op.control else {
        let logits = view::read::<T>(&op.logits);
        pool.for_each_chunk(losses, 1, |row, out| out[0] = loss(row, &logits[row * columns..(row + 1) * columns]).0);
        return;
    };
    let scale = view::read_block::<Control>(control).grad_scale;
    pool.for_each_chunk_pair((view::write::<T>(&op.logits), columns), (losses, 1), |row, logits, out| {
        let (value, lse) = loss(row, logits);
        out[0] = value;
        let Some(target) = target(row) else {
            logits.fill(T::from_f32(0.0));
            return;
        };
        let at_target = logits[target].to_f32();
        logits[..vocab].iter_mut().for_each(|x| *x = T::from_f32(exp(x.to_f32() - lse) * scale));
        logits[target] = T::from_f32((exp(at_target - lse) - 1.0) * scale);
        logits[vocab..].fill(T::from_f32(0.0));
    });
}

/// See [`Mse`].
pub(super) fn mse(op: &Mse, pool: &Pool) {
    with_float!(op.prediction.dtype, T => {
        let width = op.prediction.shape.last();
        let (prediction, target) = (view::read::<T>(&op.prediction), view::read::<T>(&op.target));
        let error = |i: usize| prediction[i].to_f32() - target[i].to_f32();
        pool.for_each_chunk(view::write::<f32>(&op.losses), 1, |row, out| {
            out[0] = sum(width, |c| error(row * width + c) * error(row * width + c)) / width as f32;
        });
        if let Some((grad, control)) = &op.grad {
            let scale = view::read_block::<Control>(control).grad_scale * 2.0 / width as f32;
            super::elementwise::map::<T>(grad, pool, |i| error(i) * scale);
        }
    });
}

/// Elements of one partial sum.
const CHUNK: usize = 1 << 16;

/// Sum of `f(x)` in f64, in fixed chunks.
pub(super) fn sum_f64(values: &[f32], pool: &Pool, f: impl Fn(f32) -> f64 + Send + Sync) -> f64 {
    let partial = pool.map(values.len().div_ceil(CHUNK), |chunk| {
        let mut lanes = [0.0f64; 8];
        let values = &values[chunk * CHUNK..values.len().min((chunk + 1) * CHUNK)];
        for group in values.chunks(8) {
            lanes.iter_mut().zip(group).for_each(|(lane, x)| *lane += f(*x));
        }
        lanes.into_iter().sum::<f64>()
    });
    partial.into_iter().sum()
}

/// See [`SumInto`].
pub(super) fn sum_into(op: &SumInto, pool: &Pool) {
    let sum = sum_f64(view::read::<f32>(&op.input), pool, f64::from) as f32;
    let total = view::write::<f32>(&op.total);
    total[0] = if op.accumulate { total[0] + sum } else { sum };
}
