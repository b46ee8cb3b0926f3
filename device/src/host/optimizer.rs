//! The update: gradient norm, clip and the optimizers.

use super::elementwise::with_float;
use super::loss::sum_f64;
use super::{Pool, view};
use crate::ops::{AdamW, AdamWTensors, ClipScale, Control, Lion, LionTensors, Sgd, SquareSum, Status};
use crate::{DType, Float, Tensor, bf16};

/// See [`SquareSum`].
pub(super) fn square_sum(op: &SquareSum, pool: &Pool) {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let total: f64 = op.inputs.iter().map(|input| sum_f64(view::read::<f32>(input), pool, square)).sum();
    view::write::<f32>(&op.total)[0] = total as f32;
}

/// See [`ClipScale`].
pub(super) fn clip_scale(op: &ClipScale) {
    let control: Control = view::read_block(&op.control);
    let mut status: Status = view::read_block(&op.status);
    let norm = view::read::<f32>(&op.square_sum)[0].sqrt() * control.inverse_loss_scale;
    status.grad_norm = norm;
    status.finite = u32::from(norm.is_finite());
    status.applies = status.finite;
    if norm.is_finite() {
        let clip = if control.clip > 0.0 { (control.clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
        status.grad_factor = clip * control.inverse_loss_scale;
        status.applied += 1;
    } else {
        status.grad_factor = 0.0;
        status.skipped += 1;
    }
    view::write_block(&op.status, &status);
}

/// Elements of one task.
const CHUNK: usize = 1 << 14;

/// Calls `work(tensor, start, length)` for chunks of all tensors of these sizes, in parallel.
pub(super) fn for_each_part(
    sizes: impl Iterator<Item = usize>,
    pool: &Pool,
    work: impl Fn(usize, usize, usize) + Send + Sync,
) {
    let mut parts = Vec::new();
    for (tensor, size) in sizes.enumerate() {
        parts.extend((0..size).step_by(CHUNK).map(|start| (tensor, start, CHUNK.min(size - start))));
    }
    pool.map(parts.len(), |i| {
        let (tensor, start, length) = parts[i];
        work(tensor, start, length);
    });
}

/// Rounds new master weights to the weights that layers compute with.
pub(super) fn publish(compute: Option<Tensor>, start: usize, master: &[f32]) {
    let Some(compute) = compute else { return };
    let compute = compute.view(start, [master.len()]);
    match compute.dtype {
        DType::Bf16 => {
            let out = view::write::<bf16>(&compute);
            out.iter_mut().zip(master).for_each(|(out, x)| *out = <bf16 as Float>::from_f32(*x));
        }
        _ => view::write::<f32>(&compute).copy_from_slice(master),
    }
}

/// The numbers of an AdamW step that all elements share.
struct AdamScalars {
    beta1: f32,
    beta2: f32,
    eps: f32,
    learning_rate: f32,
    grad_factor: f32,
    first_correction: f64,
    root_correction: f32,
}

/// See [`AdamW`].
pub(super) fn adamw(op: &AdamW, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(status.applied));
    let scalars = AdamScalars {
        beta1: op.beta1,
        beta2: op.beta2,
        eps: op.eps,
        learning_rate: control.learning_rate,
        grad_factor: status.grad_factor,
        first_correction: correction(op.beta1),
        root_correction: (1.0 / correction(op.beta2).sqrt()) as f32,
    };
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        with_float!(each.exp_avg.dtype, M => with_float!(each.exp_avg_sq.dtype, V => {
            adamw_part::<M, V>(each, &scalars, start, length);
        }));
    });
}

/// Updates a part of a parameter, whose moments are of these types. They are rounded after the weights were updated.
fn adamw_part<M: Float, V: Float>(each: &AdamWTensors, s: &AdamScalars, start: usize, length: usize) {
    let part = |tensor: &Tensor| tensor.view(start, [length]);
    let grad = view::read::<f32>(&part(&each.grad));
    let master = view::write::<f32>(&part(&each.master));
    let exp_avg = view::write::<M>(&part(&each.exp_avg));
    let exp_avg_sq = view::write::<V>(&part(&each.exp_avg_sq));
    let rate = s.learning_rate * each.lr_multiplier;
    let (step_size, decay) = ((f64::from(rate) / s.first_correction) as f32, 1.0 - rate * each.weight_decay);
    for (((w, g), first), second) in master.iter_mut().zip(grad).zip(exp_avg).zip(exp_avg_sq) {
        let (g, mut m, mut v) = (g * s.grad_factor, first.to_f32(), second.to_f32());
        m += (1.0 - s.beta1) * (g - m);
        v = s.beta2 * v + (1.0 - s.beta2) * g * g;
        *w = *w * decay - step_size * m / (v.sqrt() * s.root_correction + s.eps);
        (*first, *second) = (M::from_f32(m), V::from_f32(v));
    }
    publish(each.compute, start, master);
}

/// See [`Lion`].
pub(super) fn lion(op: &Lion, pool: &Pool) {
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    let control: Control = view::read_block(&op.control);
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        with_float!(each.exp_avg.dtype, M => {
            let rate = control.learning_rate * each.lr_multiplier;
            lion_part::<M>(op, each, (rate, status.grad_factor), start, length);
        });
    });
}

/// Updates a part of a parameter, whose moment is of this type.
fn lion_part<M: Float>(op: &Lion, each: &LionTensors, (rate, factor): (f32, f32), start: usize, length: usize) {
    let (beta1, beta2) = (op.beta1, op.beta2);
    let part = |tensor: &Tensor| tensor.view(start, [length]);
    let grad = view::read::<f32>(&part(&each.grad));
    let master = view::write::<f32>(&part(&each.master));
    let exp_avg = view::write::<M>(&part(&each.exp_avg));
    let decay = 1.0 - rate * each.weight_decay;
    for ((w, g), moment) in master.iter_mut().zip(grad).zip(exp_avg) {
        let (g, m) = (g * factor, moment.to_f32());
        let direction = beta1 * m + (1.0 - beta1) * g;
        // f32::signum is 1 for 0.
        let sign = f32::from(i8::from(direction > 0.0) - i8::from(direction < 0.0));
        *w = *w * decay - rate * sign;
        *moment = M::from_f32(beta2 * m + (1.0 - beta2) * g);
    }
    publish(each.compute, start, master);
}

/// See [`Sgd`].
pub(super) fn sgd(op: &Sgd, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.applies == 0 {
        return;
    }
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let rate = control.learning_rate * each.lr_multiplier;
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let grad = view::read::<f32>(&part(&each.grad));
        let master = view::write::<f32>(&part(&each.master));
        let gradient = |g: f32, w: f32| g * status.grad_factor + each.weight_decay * w;
        match &each.momentum {
            None => {
                for (w, g) in master.iter_mut().zip(grad) {
                    *w -= rate * gradient(*g, *w);
                }
            }
            Some(momentum) => {
                let buffer = view::write::<f32>(&part(momentum));
                for ((w, g), b) in master.iter_mut().zip(grad).zip(buffer) {
                    *b = op.momentum * *b + gradient(*g, *w);
                    *w -= rate * *b;
                }
            }
        }
        publish(each.compute, start, master);
    });
}
