//! The update: gradient norm, clip and the optimizers.

use super::loss::sum_f64;
use super::{Pool, view};
use crate::ops::{AdamW, ClipScale, Control, Lion, Sgd, SquareSum, Status};
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

/// See [`AdamW`].
pub(super) fn adamw(op: &AdamW, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.finite == 0 {
        return;
    }
    let correction = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(status.applied));
    let step_size = (f64::from(control.learning_rate) / correction(op.beta1)) as f32;
    let root_correction = (1.0 / correction(op.beta2).sqrt()) as f32;
    let (beta1, beta2, eps) = (op.beta1, op.beta2, op.eps);
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let grad = view::read::<f32>(&part(&each.grad));
        let master = view::write::<f32>(&part(&each.master));
        let exp_avg = view::write::<f32>(&part(&each.exp_avg));
        let exp_avg_sq = view::write::<f32>(&part(&each.exp_avg_sq));
        let decay = 1.0 - control.learning_rate * each.weight_decay;
        for (((w, g), m), v) in master.iter_mut().zip(grad).zip(exp_avg).zip(exp_avg_sq) {
            let g = g * status.grad_factor;
            *m += (1.0 - beta1) * (g - *m);
            *v = beta2 * *v + (1.0 - beta2) * g * g;
            *w = *w * decay - step_size * *m / (v.sqrt() * root_correction + eps);
        }
        publish(each.compute, start, master);
    });
}

/// See [`Lion`].
pub(super) fn lion(op: &Lion, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.finite == 0 {
        return;
    }
    let (rate, beta1, beta2) = (control.learning_rate, op.beta1, op.beta2);
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let grad = view::read::<f32>(&part(&each.grad));
        let master = view::write::<f32>(&part(&each.master));
        let exp_avg = view::write::<f32>(&part(&each.exp_avg));
        let decay = 1.0 - rate * each.weight_decay;
        for ((w, g), m) in master.iter_mut().zip(grad).zip(exp_avg) {
            let g = g * status.grad_factor;
            let direction = beta1 * *m + (1.0 - beta1) * g;
            // f32::signum is 1 for 0.
            let sign = f32::from(i8::from(direction > 0.0) - i8::from(direction < 0.0));
            *w = *w * decay - rate * sign;
            *m = beta2 * *m + (1.0 - beta2) * g;
        }
        publish(each.compute, start, master);
    });
}

/// See [`Sgd`].
pub(super) fn sgd(op: &Sgd, pool: &Pool) {
    let control: Control = view::read_block(&op.control);
    let status: Status = view::read_block(&op.status);
    if status.finite == 0 {
        return;
    }
    for_each_part(op.tensors.iter().map(|each| each.master.elements()), pool, |tensor, start, length| {
        let each = &op.tensors[tensor];
        let part = |tensor: &Tensor| tensor.view(start, [length]);
        let grad = view::read::<f32>(&part(&each.grad));
        let master = view::write::<f32>(&part(&each.master));
        let gradient = |g: f32, w: f32| g * status.grad_factor + each.weight_decay * w;
        match &each.momentum {
            None => {
                for (w, g) in master.iter_mut().zip(grad) {
                    *w -= control.learning_rate * gradient(*g, *w);
                }
            }
            Some(momentum) => {
                let buffer = view::write::<f32>(&part(momentum));
                for ((w, g), b) in master.iter_mut().zip(grad).zip(buffer) {
                    *b = op.momentum * *b + gradient(*g, *w);
                    *w -= control.learning_rate * *b;
                }
            }
        }
        publish(each.compute, start, master);
    });
}
