//! Sums in f64.

use crate::host::{HostKernel, Pool, view};
use crate::ops::{SquareSum, SumInto};

/// Elements of one partial sum.
const CHUNK: usize = 1 << 16;

/// Sum of `f(x)` in f64, in fixed chunks.
pub(crate) fn sum_f64(values: &[f32], pool: &Pool, f: impl Fn(f32) -> f64 + Send + Sync) -> f64 {
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

impl HostKernel for SumInto {
    fn run(&self, pool: &Pool) {
        let sum = sum_f64(view::read::<f32>(&self.input), pool, f64::from) as f32;
        let total = view::write::<f32>(&self.total);
        total[0] = if self.accumulate { total[0] + sum } else { sum };
    }
}

impl HostKernel for SquareSum {
    fn run(&self, pool: &Pool) {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let total: f64 = self.inputs.iter().map(|input| sum_f64(&view::to_f32(input), pool, square)).sum();
        view::write::<f32>(&self.total)[0] = total as f32;
    }
}
