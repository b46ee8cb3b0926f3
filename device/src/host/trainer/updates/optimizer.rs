//! Before the update: gradient norm and clip. Work over many tensors in parts.

use crate::host::trainer::losses::sum_f64;
use crate::host::{HostKernel, Pool, view};
use crate::ops::{ClipScale, Control, SquareSum, Status};
use crate::{DType, Float, Tensor, bf16};

impl HostKernel for SquareSum {
    fn run(&self, pool: &Pool) {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let total: f64 = self.inputs.iter().map(|input| sum_f64(&view::to_f32(input), pool, square)).sum();
        view::write::<f32>(&self.total)[0] = total as f32;
    }
}

impl HostKernel for ClipScale {
    fn run(&self, _pool: &Pool) {
        let control: Control = view::read_block(&self.control);
        let mut status: Status = view::read_block(&self.status);
        let norm = view::read::<f32>(&self.square_sum)[0].sqrt() * control.inverse_loss_scale;
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
        view::write_block(&self.status, &status);
    }
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
