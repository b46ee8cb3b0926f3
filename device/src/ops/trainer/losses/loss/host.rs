//! Losses.

use crate::host::parts::{Bound, exp, max, sum, with_bound};
use crate::host::{HostKernel, Pool, map, view, with_float};
use crate::ops::{Control, CrossEntropy, Mse, ZLoss};
use crate::{Float, Tensor};

/// The exponentials of a row of logits. The largest logit and the sum are kept apart: their log-sum-exp as one f32 would
/// lose as many digits as the largest logit has before the point.
#[derive(Clone, Copy)]
pub(crate) struct Exponentials {
    /// The largest logit.
    pub(crate) highest: f32,
    /// The sum of exponentials of the logits less the largest one.
    pub(crate) sum: f32,
}

impl Exponentials {
    /// The losses of a row, from the target's logit.
    pub(crate) fn losses(self, at_target: f32, multiplier: Option<f32>) -> RowLosses {
        let z_loss = multiplier.map_or(0.0, |multiplier| multiplier * self.log_sum() * self.log_sum());
        [self.sum.ln() - (at_target - self.highest), z_loss]
    }

    /// The logarithm of the sum of the exponentials of all logits. A z-loss keeps it small.
    fn log_sum(self) -> f32 {
        self.highest + self.sum.ln()
    }

    /// A z-loss's part of the gradient of each logit, as a multiple of its softmax.
    fn z_gradient(self, multiplier: f32) -> f32 {
        2.0 * multiplier * self.log_sum()
    }

    /// Overwrites logits that are not the target's by their gradient, `softmax * scale`. `multiplier` is that of the
    /// z-loss.
    pub(crate) fn overwrite_by_gradient<T: Float>(
        self,
        logits: &mut [T],
        bound: impl Bound,
        scale: f32,
        multiplier: Option<f32>,
    ) {
        let weight = multiplier.map_or(1.0, |multiplier| 1.0 + self.z_gradient(multiplier));
        let factor = scale * weight / self.sum;
        logits.iter_mut().for_each(|x| {
            let logit = bound.value(x.to_f32());
            *x = T::from_f32(exp(logit - self.highest) * factor * bound.slope(logit));
        });
    }

    /// The gradient of the target's logit after the bound, `(softmax - 1) * scale`.
    pub(crate) fn gradient_at_target(self, at_target: f32, scale: f32, multiplier: Option<f32>) -> f32 {
        let softmax = exp(at_target - self.highest) / self.sum;
        let of_z_loss = multiplier.map_or(0.0, |multiplier| softmax * self.z_gradient(multiplier) * scale);
        (softmax - 1.0) * scale + of_z_loss
    }
}

/// The losses of a row: cross-entropy and z-loss.
pub(crate) type RowLosses = [f32; 2];

/// Writes the losses of all rows.
pub(crate) fn store(rows: &[RowLosses], losses: &Tensor, z_loss: Option<ZLoss>) {
    let column = |of: usize, to: &Tensor| {
        view::write::<f32>(to).iter_mut().zip(rows).for_each(|(out, row)| *out = row[of]);
    };
    column(0, losses);
    if let Some(z_loss) = z_loss {
        column(1, &z_loss.losses);
    }
}

/// The factor of a row's gradient.
pub(crate) fn row_scale(control: &Tensor, weights: Option<Tensor>) -> impl Fn(usize) -> f32 {
    let scale = view::read_block::<Control>(control).grad_scale;
    let weights = weights.map(|weights| view::read::<f32>(&weights));
    move |row| weights.map_or(scale, |weights| scale * weights[row])
}

impl HostKernel for CrossEntropy {
    fn run(&self, pool: &Pool) {
        with_float!(self.logits.dtype, T => with_bound!(self.soft_cap, bound => rows::<T>(self, bound, pool)));
    }
}

fn rows<T: Float>(op: &CrossEntropy, bound: impl Bound, pool: &Pool) {
    let (columns, vocab) = (op.logits.shape.last(), op.vocab);
    let targets = view::read::<i32>(&op.targets);
    let target = |row: usize| usize::try_from(targets[row]).ok().filter(|&target| target < vocab);
    let mut losses = vec![RowLosses::default(); op.logits.shape.rows()];
    let multiplier = op.z_loss.map(|z_loss| z_loss.multiplier);
    let exponentials = |logits: &[T]| {
        let highest = bound.value(max(vocab, |c| logits[c].to_f32()));
        Exponentials { highest, sum: sum(vocab, |c| exp(bound.value(logits[c].to_f32()) - highest)) }
    };
    let of_row = |row: usize, logits: &[T], of: Exponentials| {
        let at_target = target(row).map(|target| bound.value(logits[target].to_f32()));
        at_target.map_or(RowLosses::default(), |at_target| of.losses(at_target, multiplier))
    };
    let Some(control) = &op.control else {
        let logits = view::read::<T>(&op.logits);
        pool.for_each_chunk(&mut losses, 1, |row, out| {
            let logits = &logits[row * columns..(row + 1) * columns];
            out[0] = of_row(row, logits, exponentials(logits));
        });
        return store(&losses, &op.losses, op.z_loss);
    };
    let scale = row_scale(control, op.weights);
    pool.for_each_chunk_pair((view::write::<T>(&op.logits), columns), (&mut losses, 1), |row, logits, out| {
        let (of, scale) = (exponentials(logits), scale(row));
        out[0] = of_row(row, logits, of);
        let Some(target) = target(row) else {
            logits.fill(T::from_f32(0.0));
            return;
        };
        let at_target = bound.value(logits[target].to_f32());
        of.overwrite_by_gradient(&mut logits[..vocab], bound, scale, multiplier);
        let grad = of.gradient_at_target(at_target, scale, multiplier);
        logits[target] = T::from_f32(grad * bound.slope(at_target));
        logits[vocab..].fill(T::from_f32(0.0));
    });
    store(&losses, &op.losses, op.z_loss);
}

impl HostKernel for Mse {
    fn run(&self, pool: &Pool) {
        with_float!(self.prediction.dtype, T => {
            let width = self.prediction.shape.last();
            let (prediction, target) = (view::read::<T>(&self.prediction), view::read::<T>(&self.target));
            let error = |i: usize| prediction[i].to_f32() - target[i].to_f32();
            pool.for_each_chunk(view::write::<f32>(&self.losses), 1, |row, out| {
                out[0] = sum(width, |c| error(row * width + c) * error(row * width + c)) / width as f32;
            });
            if let Some((grad, control)) = &self.grad {
                let scale = view::read_block::<Control>(control).grad_scale * 2.0 / width as f32;
                map::<T>(grad, pool, |i| error(i) * scale);
            }
        });
    }
}
