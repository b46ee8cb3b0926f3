//! Attention: one task per head, one block of queries at a time. Only the scores of one block are in memory, for the keys that
//! some query of the block sees.

use std::borrow::Cow;
use std::ops::Range;

use crate::host::parts::{
    Bound, DropoutMask, Matrix, exp, factors_in_f32, in_f32, max, multiply, scatter, sum, with_bound,
};
use crate::host::{HostKernel, Pool, to_f32, view};
use crate::ops::{Accesses, Attention, AttentionBackward, AttentionSizes, Documents, Mask, Operation, RankKeys};

/// Queries of a block.
const BLOCK: usize = 64;

/// The `(seq, dim)` matrix of a group of channels of `qkv`: query heads come first, then key heads, then value heads.
fn packed_head<'a>(sizes: &AttentionSizes, qkv: &'a [f32], batch: usize, group: usize) -> Matrix<'a> {
    let width = sizes.packed_width();
    Matrix { data: qkv, offset: batch * sizes.seq * width + group * sizes.dim, row_stride: width, column_stride: 1 }
}

/// The rows that have keys and values: rows of their own, or packed ones.
struct KeyRows<'a> {
    data: Option<Cow<'a, [f32]>>,
    /// Elements of a row.
    width: usize,
    /// Groups of channels before the keys.
    queries: usize,
}

impl<'k> KeyRows<'k> {
    fn new(sizes: &AttentionSizes, keys: Option<RankKeys>) -> KeyRows<'k> {
        let (width, queries) = match keys {
            Some(_) => (2 * sizes.kv_heads * sizes.dim, 0),
            None => (sizes.packed_width(), sizes.heads),
        };
        KeyRows { data: keys.map(|keys| to_f32(&keys.rows)), width, queries }
    }

    /// The elements before a key head, or a value head that is counted behind all key heads.
    fn start(&self, sizes: &AttentionSizes, batch: usize, head: usize) -> usize {
        batch * sizes.keys * self.width + (self.queries + head) * sizes.dim
    }

    /// The `(keys, dim)` matrices of the keys and of the values of a key head.
    fn heads<'a>(&'a self, sizes: &AttentionSizes, qkv: &'a [f32], batch: usize, kv: usize) -> [Matrix<'a>; 2] {
        let data = self.data.as_deref().unwrap_or(qkv);
        [kv, sizes.kv_heads + kv].map(|head| {
            let offset = self.start(sizes, batch, head);
            Matrix { data, offset, row_stride: self.width, column_stride: 1 }
        })
    }
}

/// Blocks of neighbouring queries that see keys: the first of each, and their number.
fn blocks(sizes: &AttentionSizes) -> impl Iterator<Item = (usize, usize)> {
    let part = sizes.share.first_part(sizes.seq);
    let of_part = |first: usize, end: usize| (first..end).step_by(BLOCK).map(move |at| (at, BLOCK.min(end - at)));
    of_part(sizes.queries().start, part).chain(of_part(part, sizes.seq))
}

/// The `(seq, dim)` matrix of a head of a `(batch, seq, heads * dim)` tensor.
fn plain_head<'a>(sizes: &AttentionSizes, data: &'a [f32], batch: usize, head: usize) -> Matrix<'a> {
    let width = sizes.heads * sizes.dim;
    Matrix { data, offset: batch * sizes.seq * width + head * sizes.dim, row_stride: width, column_stride: 1 }
}

/// The keys that each query sees: those of its own document within the mask, or the same ones of another rank.
#[derive(Clone, Copy)]
struct Seen<'a> {
    mask: Mask,
    /// `(batch, keys)`: the position of each token in its document; `None` if each sample is one document.
    position_ids: Option<&'a [i32]>,
    sizes: AttentionSizes,
}

impl<'a> Seen<'a> {
    fn new(mask: Mask, documents: Option<&'a Documents>, sizes: AttentionSizes) -> Seen<'a> {
        Seen { mask, position_ids: documents.map(|documents| view::read::<i32>(&documents.position_ids)), sizes }
    }

    /// The keys that a query sees. Those of a later query neither begin nor end before them.
    fn keys(&self, batch: usize, query: usize) -> Range<usize> {
        let sizes = &self.sizes;
        if sizes.of_rank.is_some() {
            return 0..sizes.seen_keys();
        }
        let position = sizes.share.position(query, sizes.seq);
        let in_document = self.position_ids.map_or(position, |ids| ids[batch * sizes.keys + position].max(0) as usize);
        self.mask.first_key(position).max(position.saturating_sub(in_document))..position + 1
    }

    /// The keys that some query of a block sees.
    fn keys_of_block(&self, batch: usize, (start, rows): (usize, usize)) -> Range<usize> {
        self.keys(batch, start).start..self.keys(batch, start + rows - 1).end
    }
}

/// The factors in f32, and the results of all heads before they are stored.
fn attention_scratch(accesses: &Accesses) -> usize {
    factors_in_f32(accesses) + accesses.writes.iter().map(in_f32).sum::<usize>()
}

impl HostKernel for Attention {
    fn run(&self, pool: &Pool) {
        let p = AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(self.keys);
        let (qkv, keys) = (to_f32(&self.qkv), KeyRows::new(&p, self.keys));
        let dropout = self.dropout.as_ref().map(DropoutMask::new);
        let seen = Seen::new(self.mask, self.documents.as_ref(), p);
        let results = pool.map(p.batch * p.heads, |task| {
            let (batch, head) = (task / p.heads, task % p.heads);
            with_bound!(self.scores.soft_cap, bound => {
                let [key, value] = keys.heads(&p, &qkv, batch, head / (p.heads / p.kv_heads));
                let query = packed_head(&p, &qkv, batch, head);
                forward_head(&p, [query, key, value], (batch, head), (self.scores.scale(p.dim), bound), seen, dropout.as_ref())
            })
        });
        let stats = view::write::<f32>(&self.stats);
        let (width, first) = (p.heads * p.dim, p.queries().start);
        for (task, (output, lse)) in results.iter().enumerate() {
            let (batch, head) = (task / p.heads, task % p.heads);
            let start = (batch * p.seq + first) * width + head * p.dim;
            scatter(&self.output, start, width, p.dim, &output[first * p.dim..]);
            stats[task * p.seq..(task + 1) * p.seq][p.queries()].copy_from_slice(&lse[p.queries()]);
        }
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        attention_scratch(&self.accesses())
    }
}

/// One head's output `(seq, dim)` and log-sum-exp `(seq)`.
fn forward_head(
    p: &AttentionSizes,
    [query, key, value]: [Matrix<'_>; 3],
    (batch, head): (usize, usize),
    (scale, bound): (f32, impl Bound),
    sees: Seen<'_>,
    dropout: Option<&DropoutMask>,
) -> (Vec<f32>, Vec<f32>) {
    let mut output = vec![0.0; p.seq * p.dim];
    let mut lse = vec![0.0; p.seq];
    let mut scores = vec![0.0; BLOCK * p.keys];
    for (start, rows) in blocks(p) {
        let Range { start: first, end } = sees.keys_of_block(batch, (start, rows));
        let keys = end - first;
        let scores = &mut scores[..rows * keys];
        let (key, value) = (key.below(first), value.below(first));
        multiply((rows, keys, p.dim), scale, query.below(start), key.transposed(), scores, keys, false);
        for (i, row) in scores.chunks_mut(keys).enumerate() {
            let Range { start: seen_from, end: seen_to } = sees.keys(batch, start + i);
            let (past, rest) = row.split_at_mut(seen_from - first);
            let (seen, future) = rest.split_at_mut(seen_to - seen_from);
            seen.iter_mut().for_each(|x| *x = bound.value(*x));
            let highest = max(seen.len(), |j| seen[j]);
            seen.iter_mut().for_each(|x| *x = exp(*x - highest));
            let total = sum(seen.len(), |j| seen[j]);
            seen.iter_mut().for_each(|x| *x /= total);
            past.fill(0.0);
            future.fill(0.0);
            lse[start + i] = highest + total.ln();
            if let Some(dropout) = dropout {
                let channel = (dropout.first_head + head) * p.keys + seen_from;
                dropout.for_each(batch, start + i, channel, seen.len(), |j, factor| seen[j] *= factor);
            }
        }
        let out = &mut output[start * p.dim..(start + rows) * p.dim];
        multiply((rows, p.dim, keys), 1.0, Matrix::rows(scores, keys), value, out, p.dim, false);
    }
    (output, lse)
}

impl HostKernel for AttentionBackward {
    /// One task per key head, so that the query heads that share it add up in order.
    fn run(&self, pool: &Pool) {
        let whole = self.keys.map(|keys| keys.keys);
        let p = AttentionSizes::new(&self.qkv, self.heads, self.kv_heads).with_keys(whole);
        let inputs = Inputs {
            qkv: &to_f32(&self.qkv),
            keys: KeyRows::new(&p, whole),
            output: &to_f32(&self.output),
            grad_output: &to_f32(&self.grad_output),
            stats: view::read::<f32>(&self.stats),
            sees: Seen::new(self.mask, self.documents.as_ref(), p),
            dropout: self.dropout.as_ref().map(DropoutMask::new),
            scale: self.scores.scale(p.dim),
        };
        let group = p.heads / p.kv_heads;
        let results = with_bound!(self.scores.soft_cap, bound => {
            pool.map(p.batch * p.kv_heads, |task| backward_group(&p, &inputs, bound, task / p.kv_heads, task % p.kv_heads))
        });
        for (task, grads) in results.iter().enumerate() {
            let (batch, kv) = (task / p.kv_heads, task % p.kv_heads);
            let first = p.queries().start;
            let start = |part: usize| (batch * p.seq + first) * p.packed_width() + part * p.dim;
            for (i, grad_query) in grads.query.iter().enumerate() {
                let seeing = &grad_query[first * p.dim..];
                scatter(&self.grad_qkv, start(kv * group + i), p.packed_width(), p.dim, seeing);
            }
            let (rows, to) = (&inputs.keys, self.keys.map_or(self.grad_qkv, |keys| keys.grad));
            let seen = ..p.seen_keys() * p.dim;
            scatter(&to, rows.start(&p, batch, kv), rows.width, p.dim, &grads.key[seen]);
            scatter(&to, rows.start(&p, batch, p.kv_heads + kv), rows.width, p.dim, &grads.value[seen]);
        }
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        attention_scratch(&self.accesses())
    }
}

struct Inputs<'a> {
    qkv: &'a [f32],
    keys: KeyRows<'a>,
    output: &'a [f32],
    grad_output: &'a [f32],
    stats: &'a [f32],
    sees: Seen<'a>,
    dropout: Option<DropoutMask>,
    /// The factor of products.
    scale: f32,
}

/// Gradients of one key head, `(keys, dim)`, and of its query heads, `(seq, dim)` each.
struct Grads {
    query: Vec<Vec<f32>>,
    key: Vec<f32>,
    value: Vec<f32>,
}

fn backward_group(p: &AttentionSizes, inputs: &Inputs<'_>, bound: impl Bound, batch: usize, kv: usize) -> Grads {
    let group = p.heads / p.kv_heads;
    let [key, value] = inputs.keys.heads(p, inputs.qkv, batch, kv);
    let scale = inputs.scale;
    let zeros = |rows: usize| vec![0.0; rows * p.dim];
    let mut grads = Grads { query: Vec::with_capacity(group), key: zeros(p.keys), value: zeros(p.keys) };
    let mut probabilities = vec![0.0; BLOCK * p.keys];
    let mut dropped = vec![0.0; BLOCK * p.keys];
    let mut grad_scores = vec![0.0; BLOCK * p.keys];
    // Of one row.
    let mut slopes = vec![0.0; p.keys];
    for head in kv * group..(kv + 1) * group {
        let query = packed_head(p, inputs.qkv, batch, head);
        let output = plain_head(p, inputs.output, batch, head);
        let grad_output = plain_head(p, inputs.grad_output, batch, head);
        let stats = &inputs.stats[(batch * p.heads + head) * p.seq..][..p.seq];
        let mut grad_query = zeros(p.seq);
        for (start, rows) in blocks(p) {
            let Range { start: first, end } = inputs.sees.keys_of_block(batch, (start, rows));
            let keys = end - first;
            let (key, value) = (key.below(first), value.below(first));
            let probabilities = &mut probabilities[..rows * keys];
            let dropped = &mut dropped[..rows * keys];
            let grad_scores = &mut grad_scores[..rows * keys];
            let (query, grad_output) = (query.below(start), grad_output.below(start));
            multiply((rows, keys, p.dim), scale, query, key.transposed(), probabilities, keys, false);
            // The gradient of the (dropped) probabilities, turned into that of the scores row by row.
            multiply((rows, keys, p.dim), 1.0, grad_output, value.transposed(), grad_scores, keys, false);
            for i in 0..rows {
                let Range { start: seen_from, end: seen_to } = inputs.sees.keys(batch, start + i);
                let row = i * keys + seen_from - first..i * keys + seen_to - first;
                let at = |m: Matrix<'_>, r: usize, c: usize| m.data[m.offset + r * m.row_stride + c];
                let delta = sum(p.dim, |c| at(grad_output, i, c) * at(output, start + i, c));
                let (seen, grad) = (&mut probabilities[row.clone()], &mut grad_scores[row.clone()]);
                for (x, slope) in seen.iter_mut().zip(&mut slopes) {
                    let score = bound.value(*x);
                    *slope = bound.slope(score);
                    *x = exp(score - stats[start + i]);
                }
                let after = &mut dropped[row.clone()];
                after.copy_from_slice(seen);
                if let Some(dropout) = &inputs.dropout {
                    let channel = (dropout.first_head + head) * p.keys + seen_from;
                    dropout.for_each(batch, start + i, channel, seen.len(), |j, factor| {
                        after[j] *= factor;
                        grad[j] *= factor;
                    });
                }
                for ((grad, p), slope) in grad.iter_mut().zip(seen.iter()).zip(&slopes) {
                    *grad = p * (*grad - delta) * slope * scale;
                }
                for values in [&mut *dropped, &mut *grad_scores] {
                    values[i * keys..row.start].fill(0.0);
                    values[row.end..(i + 1) * keys].fill(0.0);
                }
            }
            let (dropped, grad_scores) = (Matrix::rows(dropped, keys), Matrix::rows(grad_scores, keys));
            let out = &mut grad_query[start * p.dim..(start + rows) * p.dim];
            multiply((rows, p.dim, keys), 1.0, grad_scores, key, out, p.dim, false);
            let (key, value) = (&mut grads.key[first * p.dim..], &mut grads.value[first * p.dim..]);
            multiply((keys, p.dim, rows), 1.0, grad_scores.transposed(), query, key, p.dim, true);
            multiply((keys, p.dim, rows), 1.0, dropped.transposed(), grad_output, value, p.dim, true);
        }
        grads.query.push(grad_query);
    }
    grads
}
