//! Sinks of attention.

use crate::Float;
use crate::host::parts::{in_f32, sum};
use crate::host::{HostKernel, Pool, to_f32, view, with_float};
use crate::ops::{AddSinks, SinkGradients, SinkSizes};

/// The logarithm of `exp(a) + exp(b)`.
fn joined(a: f32, b: f32) -> f32 {
    let (top, low) = (a.max(b), a.min(b));
    top + (low - top).exp().ln_1p()
}

impl HostKernel for AddSinks {
    fn run(&self, pool: &Pool) {
        let SinkSizes { seq, heads, dim, .. } = SinkSizes::of(&self.attended);
        let (sinks, stats) = (view::read::<f32>(&self.sinks), view::write::<f32>(&self.attended.stats));
        let before = stats.to_vec();
        stats.iter_mut().enumerate().for_each(|(at, stat)| *stat = joined(*stat, sinks[at / seq % heads]));
        let stats = &*stats;
        with_float!(self.attended.output.dtype, T => {
            pool.for_each_chunk(view::write::<T>(&self.attended.output), (heads * dim).max(1), |row, out| {
                for (head, out) in out.chunks_mut(dim.max(1)).enumerate() {
                    let at = (row / seq * heads + head) * seq + row % seq;
                    let factor = (before[at] - stats[at]).exp();
                    out.iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() * factor));
                }
            });
        });
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        self.attended.stats.bytes()
    }
}

impl HostKernel for SinkGradients {
    fn run(&self, pool: &Pool) {
        let SinkSizes { seq, heads, dim, .. } = SinkSizes::of(&self.attended);
        let (sinks, stats) = (view::read::<f32>(&self.sinks), view::read::<f32>(&self.attended.stats));
        let (output, grad) = (to_f32(&self.attended.output), to_f32(&self.grad_output));
        pool.for_each_chunk(view::write::<f32>(&self.summands), heads, |row, summands| {
            for (head, summand) in summands.iter_mut().enumerate() {
                let (at, first) = ((row / seq * heads + head) * seq + row % seq, (row * heads + head) * dim);
                let dot = sum(dim, |channel| output[first + channel] * grad[first + channel]);
                *summand = -(sinks[head] - stats[at]).exp() * dot;
            }
        });
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        in_f32(&self.attended.output) + in_f32(&self.grad_output)
    }
}
