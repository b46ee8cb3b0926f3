//! Sums over parts of the keys of attention.

use crate::Float;
use crate::host::parts::in_f32;
use crate::host::{HostKernel, Pool, to_f32, view, with_float};
use crate::ops::{AddRows, MergeAttention};

/// The weights of two parts, and the statistic of both.
fn weights(first: f32, second: Option<f32>) -> ([f32; 2], f32) {
    let top = first.max(second.unwrap_or(first));
    let [first, second] = [(first - top).exp(), second.map_or(0.0, |second| (second - top).exp())];
    let sum = first + second;
    ([first / sum, second / sum], top + sum.ln())
}

impl HostKernel for MergeAttention {
    fn run(&self, pool: &Pool) {
        let &[_, heads, seq] = self.merged.stats.shape.sizes() else { return };
        let width = self.merged.output.shape.last();
        let dim = width / heads;
        // Copies: the results may replace the first part.
        let first = to_f32(&self.first.output).into_owned();
        let second = to_f32(&self.second.output);
        let of_second = |at: usize, stat: f32| (at % seq >= self.first_query).then_some(stat);
        let pairs = view::read::<f32>(&self.first.stats).iter().zip(view::read::<f32>(&self.second.stats));
        let stats: Vec<_> = pairs.enumerate().map(|(at, (a, b))| weights(*a, of_second(at, *b))).collect();
        with_float!(self.merged.output.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.merged.output), width.max(1), |row, out| {
                let (sample, token) = (row / seq, row % seq);
                let seen = token >= self.first_query;
                for (channel, out) in out.iter_mut().enumerate() {
                    let ([of_first, of_second], _) = stats[(sample * heads + channel / dim) * seq + token];
                    let at = row * width + channel;
                    *out = T::from_f32(of_first * first[at] + if seen { of_second * second[at] } else { 0.0 });
                }
            });
        });
        view::write::<f32>(&self.merged.stats).iter_mut().zip(&stats).for_each(|(to, (_, stat))| *to = *stat);
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        self.first.output.elements() * size_of::<f32>() + in_f32(&self.second.output) + 3 * self.merged.stats.bytes()
    }
}

impl HostKernel for AddRows {
    fn run(&self, pool: &Pool) {
        with_float!(self.to.matrix.dtype, A => with_float!(self.b.matrix.dtype, B => add::<A, B>(self, pool)));
    }
}

fn add<A: Float, B: Float>(op: &AddRows, pool: &Pool) {
    let (columns, to) = (op.columns, op.to.column..op.to.column + op.columns);
    let is_in_place = op.a == Some(op.to);
    pool.for_each_chunk(view::write::<A>(&op.to.matrix), op.to.matrix.shape.last().max(1), |at, out| {
        let Some(row) = at.checked_sub(op.to.row).filter(|row| *row < op.rows) else { return };
        let out = &mut out[to.clone()];
        match op.a {
            None => out.fill(A::from_f32(0.0)),
            Some(a) if !is_in_place => {
                let first = (a.row + row) * a.matrix.shape.last() + a.column;
                out.copy_from_slice(view::read::<A>(&a.matrix.view(first, [columns])));
            }
            Some(_) => {}
        }
        if op.added.contains(&(row % op.tokens)) {
            let first = (op.b.row + row) * op.b.matrix.shape.last() + op.b.column;
            let b = view::read::<B>(&op.b.matrix.view(first, [columns]));
            out.iter_mut().zip(b).for_each(|(out, b)| *out = A::from_f32(out.to_f32() + b.to_f32()));
        }
    });
}
