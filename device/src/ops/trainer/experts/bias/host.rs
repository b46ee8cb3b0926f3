//! Biases of experts.

use crate::Float;
use crate::host::parts::sum;
use crate::host::{HostKernel, Pool, view, with_float};
use crate::ops::{AddExpertBias, ExpertBiasDots, ExpertBiasGradient, RowWeights};

/// The expert of a row; `None` of a row behind those of experts.
fn expert_of(offsets: &[i32], row: usize) -> Option<usize> {
    offsets.partition_point(|first| *first as usize <= row).checked_sub(1).filter(|expert| expert + 1 < offsets.len())
}

/// The weight of a row.
fn weight_of(weights: &Option<RowWeights>) -> impl Fn(usize) -> f32 + Sync {
    let weights = weights.map(|of| (view::read::<f32>(&of.weights), view::read::<i32>(&of.pairs)));
    move |row| weights.map_or(1.0, |(weights, pairs)| weights[pairs[row] as usize])
}

impl HostKernel for AddExpertBias {
    fn run(&self, pool: &Pool) {
        let (offsets, weight) = (view::read::<i32>(&self.offsets), weight_of(&self.weights));
        let width = self.rows.shape.last();
        with_float!(self.rows.dtype, T => {
            let bias = view::read::<T>(&self.bias);
            pool.for_each_chunk(view::write::<T>(&self.rows), width.max(1), |row, out| {
                let Some(expert) = expert_of(offsets, row) else { return };
                let (weight, bias) = (weight(row), &bias[expert * width..]);
                out.iter_mut().zip(bias).for_each(|(out, b)| *out = T::from_f32(out.to_f32() + weight * b.to_f32()));
            });
        });
    }
}

impl HostKernel for ExpertBiasGradient {
    fn run(&self, pool: &Pool) {
        let (offsets, weight) = (view::read::<i32>(&self.offsets), weight_of(&self.weights));
        let width = self.rows.shape.last();
        with_float!(self.rows.dtype, T => {
            let rows = view::read::<T>(&self.rows);
            pool.for_each_chunk(view::write::<f32>(&self.grad), width.max(1), |expert, out| {
                let mut sums = vec![0.0; width];
                for row in offsets[expert] as usize..offsets[expert + 1] as usize {
                    let (weight, row) = (weight(row), &rows[row * width..]);
                    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * x.to_f32());
                }
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = if self.accumulate { *out + sum } else { sum };
                }
            });
        });
    }

    fn scratch_bytes(&self, pool: &Pool) -> usize {
        pool.threads() * self.rows.shape.last() * size_of::<f32>()
    }
}

impl HostKernel for ExpertBiasDots {
    fn run(&self, pool: &Pool) {
        let (offsets, pairs) = (view::read::<i32>(&self.offsets), view::read::<i32>(&self.pairs));
        let width = self.rows.shape.last();
        with_float!(self.rows.dtype, T => {
            let (rows, bias) = (view::read::<T>(&self.rows), view::read::<T>(&self.bias));
            let dots = pool.map(pairs.len(), |row| {
                let expert = expert_of(offsets, row)?;
                Some(sum(width, |c| rows[row * width + c].to_f32() * bias[expert * width + c].to_f32()))
            });
            let grad = view::write::<f32>(&self.grad_weights);
            for (dot, pair) in dots.into_iter().zip(pairs) {
                dot.into_iter().for_each(|dot| grad[*pair as usize] += dot);
            }
        });
    }
}
