//! Attention over a cache, and rows at a position in device memory.

use crate::host::parts::{Bound, Matrix, exp, max, multiply, scatter, sum, with_bound};
use crate::host::{HostKernel, Pool, to_f32, view, with_float};
use crate::ops::{CachedAttention, Mask, TakeRows};
use crate::{Float, Tensor};

/// Queries of a block.
const BLOCK: usize = 64;

/// The position in device memory, clamped so that `rows` from it fit into `capacity`.
pub(crate) fn position(start: &Tensor, rows: usize, capacity: usize) -> usize {
    usize::try_from(view::read::<i32>(start)[0]).unwrap_or(0).min(capacity - rows)
}

impl HostKernel for TakeRows {
    fn run(&self, pool: &Pool) {
        fn copy<T: Float>(op: &TakeRows, pool: &Pool) {
            let rows = op.output.shape.sizes()[0];
            let width = op.output.elements() / rows.max(1);
            let start = position(&op.start, rows, op.table.shape.sizes()[0]);
            let from = &view::read::<T>(&op.table)[start * width..];
            pool.for_each_chunk(view::write::<T>(&op.output), width.max(1), |row, out| {
                out.copy_from_slice(&from[row * width..(row + 1) * width]);
            });
        }
        with_float!(self.output.dtype, T => copy::<T>(self, pool));
    }
}

impl HostKernel for CachedAttention {
    fn run(&self, pool: &Pool) {
        let (batch, rows, dim) = self.sizes();
        if batch * rows * dim == 0 {
            return;
        }
        let start = position(&self.start, rows, self.capacity());
        with_float!(self.qkv.dtype, T => append::<T>(self, start));
        let qkv = to_f32(&self.qkv);
        // Only the rows that are read are converted to f32.
        let filled: Vec<_> = (0..batch).map(|b| to_f32(&self.cache.at(b).narrow(0, start + rows))).collect();
        let outputs = pool.map(batch * self.heads, |task| {
            let (b, head) = (task / self.heads, task % self.heads);
            with_bound!(self.scores.soft_cap, bound => one_head(self, &qkv, &filled[b], bound, (b, head), start))
        });
        let width = self.heads * dim;
        for (task, output) in outputs.iter().enumerate() {
            let (b, head) = (task / self.heads, task % self.heads);
            scatter(&self.output, b * rows * width + head * dim, width, dim, output);
        }
    }
}

/// Writes the new keys and values to the cache.
fn append<T: Float>(op: &CachedAttention, start: usize) {
    let (_, rows, dim) = op.sizes();
    let (queries, width) = (op.heads * dim, op.cache.shape.last());
    let cache = view::write::<T>(&op.cache);
    for (row, new) in view::read::<T>(&op.qkv).chunks(queries + width).enumerate() {
        let at = (row / rows * op.capacity() + start + row % rows) * width;
        cache[at..at + width].copy_from_slice(&new[queries..]);
    }
}

/// The output `(rows, dim)` of a head, from `qkv` of all sequences and the filled rows of its sequence's cache.
fn one_head(
    op: &CachedAttention,
    qkv: &[f32],
    cache: &[f32],
    bound: impl Bound,
    (b, head): (usize, usize),
    start: usize,
) -> Vec<f32> {
    let (_, rows, dim) = op.sizes();
    let kv = head / (op.heads / op.kv_heads);
    let row_stride = op.qkv.shape.last();
    let cached =
        |group: usize| Matrix { data: cache, offset: group * dim, row_stride: op.cache.shape.last(), column_stride: 1 };
    let attending = CachedHead {
        query: Matrix { data: qkv, offset: b * rows * row_stride + head * dim, row_stride, column_stride: 1 },
        key: cached(kv),
        value: cached(op.kv_heads + kv),
        channels: dim,
        values: dim,
        rows,
        start,
        scale: op.scores.scale(dim),
        mask: op.mask,
        sink: op.sinks.map(|sinks| view::read::<f32>(&sinks)[head]),
    };
    attending.attend(bound)
}

/// The queries of new tokens in a head, and the keys and values of all tokens so far.
pub(crate) struct CachedHead<'a> {
    /// `(rows, channels)`.
    pub(crate) query: Matrix<'a>,
    /// `(start + rows, channels)`.
    pub(crate) key: Matrix<'a>,
    /// `(start + rows, values)`.
    pub(crate) value: Matrix<'a>,
    /// Of a query.
    pub(crate) channels: usize,
    /// Channels of a value.
    pub(crate) values: usize,
    /// New tokens.
    pub(crate) rows: usize,
    /// The position of the first new token.
    pub(crate) start: usize,
    /// Of products.
    pub(crate) scale: f32,
    pub(crate) mask: Mask,
    pub(crate) sink: Option<f32>,
}

impl CachedHead<'_> {
    /// The output `(rows, values)`.
    pub(crate) fn attend(&self, bound: impl Bound) -> Vec<f32> {
        let &CachedHead { channels, values, rows, start, .. } = self;
        let mut output = vec![0.0; rows * values];
        let mut scores = vec![0.0; BLOCK.min(rows) * (start + rows)];
        for first in (0..rows).step_by(BLOCK) {
            let count = BLOCK.min(rows - first);
            // The keys that some query of the block sees.
            let oldest = self.mask.first_key(start + first);
            let keys = start + first + count - oldest;
            let scores = &mut scores[..count * keys];
            let (query, key, value) = (self.query.below(first), self.key.below(oldest), self.value.below(oldest));
            multiply((count, keys, channels), self.scale, query, key.transposed(), scores, keys, false);
            for (i, row) in scores.chunks_mut(keys).enumerate() {
                let position = start + first + i;
                let seen_from = self.mask.first_key(position);
                let (past, rest) = row.split_at_mut(seen_from - oldest);
                let (seen, future) = rest.split_at_mut(position + 1 - seen_from);
                seen.iter_mut().for_each(|x| *x = bound.value(*x));
                let highest = max(seen.len(), |j| seen[j]).max(self.sink.unwrap_or(f32::NEG_INFINITY));
                seen.iter_mut().for_each(|x| *x = exp(*x - highest));
                let total = sum(seen.len(), |j| seen[j]) + self.sink.map_or(0.0, |sink| exp(sink - highest));
                seen.iter_mut().for_each(|x| *x /= total);
                past.fill(0.0);
                future.fill(0.0);
            }
            let out = &mut output[first * values..(first + count) * values];
            multiply((count, values, keys), 1.0, Matrix::rows(scores, keys), value, out, values, false);
        }
        output
    }
}
