//! Attention over a cache of latents.

use super::super::cache::host::{CachedHead, position};
use super::super::latent::host::turn;
use crate::Float;
use crate::host::parts::{Matrix, multiply, scatter, with_bound};
use crate::host::{HostKernel, Pool, to_f32, view, with_float};
use crate::ops::{CachedLatentAttention, CachedLatentSizes};

impl HostKernel for CachedLatentAttention {
    fn run(&self, pool: &Pool) {
        let CachedLatentSizes { batch, rows, heads, capacity, .. } = self.sizes();
        if batch * rows * heads == 0 {
            return;
        }
        let start = position(&self.start, rows, capacity);
        with_float!(self.cache.dtype, T => append::<T>(self, start));
        let (queries, weight) = (to_f32(&self.queries), to_f32(&self.weight));
        // Only the rows that are read are converted to f32.
        let filled: Vec<_> = (0..batch).map(|b| to_f32(&self.cache.at(b).narrow(0, start + rows))).collect();
        let outputs = pool.map(batch * heads, |task| {
            let (b, head) = (task / heads, task % heads);
            one_head(self, (&queries, &weight), &filled[b], (b, head), start)
        });
        let (value, width) = (self.head.value, heads * self.head.value);
        for (task, output) in outputs.iter().enumerate() {
            let (b, head) = (task / heads, task % heads);
            scatter(&self.output, b * rows * width + head * value, width, value, output);
        }
    }
}

/// Writes the vectors of new tokens to the cache.
fn append<T: Float>(op: &CachedLatentAttention, start: usize) {
    let CachedLatentSizes { rows, rank, capacity, .. } = op.sizes();
    let (turned, columns) = (op.head.rotated, op.rotated.shape.last());
    let (rotated, table) = (view::read::<T>(&op.rotated), view::read::<f32>(&op.table));
    let cache = view::write::<T>(&op.cache);
    for (row, latent) in view::read::<T>(&op.latents).chunks(rank).enumerate() {
        let at = (row / rows * capacity + start + row % rows) * (rank + turned);
        let (to, to_turned) = cache[at..][..rank + turned].split_at_mut(rank);
        to.copy_from_slice(latent);
        turn(&rotated[(row + 1) * columns - turned..][..turned], &table[row % rows * turned..][..turned], to_turned);
    }
}

/// The output `(rows, value)` of a head of a sequence.
fn one_head(
    op: &CachedLatentAttention,
    (queries, weight): (&[f32], &[f32]),
    cache: &[f32],
    (b, head): (usize, usize),
    start: usize,
) -> Vec<f32> {
    let (sizes, of) = (op.sizes(), op.head);
    let CachedLatentSizes { rows, rank, .. } = sizes;
    let (columns, width) = (op.queries.shape.last(), rank + of.rotated);
    let query =
        Matrix { data: queries, offset: b * rows * columns + head * of.query(), row_stride: columns, column_stride: 1 };
    let of_head = Matrix { offset: head * (of.plain + of.value) * rank, ..Matrix::rows(weight, rank) };
    let to_values = Matrix { offset: of_head.offset + of.plain * rank, ..of_head };
    let mut absorbed = vec![0.0; rows * width];
    multiply((rows, rank, of.plain), 1.0, query, of_head, &mut absorbed, width, false);
    let table = view::read::<f32>(&op.table);
    for (row, to) in absorbed.chunks_mut(width).enumerate() {
        let from = &queries[query.offset + row * columns + of.plain..][..of.rotated];
        turn(from, &table[row * of.rotated..][..of.rotated], &mut to[rank..]);
    }
    let latents = Matrix::rows(cache, width);
    let attending = CachedHead {
        query: Matrix::rows(&absorbed, width),
        key: latents,
        value: latents,
        channels: width,
        values: rank,
        rows,
        start,
        scale: op.scores.scale(of.query()),
        mask: op.mask,
        sink: None,
    };
    let sums = with_bound!(op.scores.soft_cap, bound => attending.attend(bound));
    let mut output = vec![0.0; rows * of.value];
    multiply(
        (rows, of.value, rank),
        1.0,
        Matrix::rows(&sums, rank),
        to_values.transposed(),
        &mut output,
        of.value,
        false,
    );
    output
}
