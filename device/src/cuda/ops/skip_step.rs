//! Steps that make no update because their loss or gradient norm is a spike.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{SkipStep, VoidStep};

/// The struct of the same name in `kernels/skip_step.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct SkipStepArgs {
    loss_sum: u64,
    history: u64,
    control: u64,
    status: u64,
    sigma_factor: f32,
    interval: u32,
    least: u32,
    padding: u32,
}

/// See [`SkipStep`]. One warp.
pub(super) fn skip_step(op: &SkipStep, queue: &Queue<'_>) -> Result<()> {
    let block = SkipStepArgs {
        loss_sum: op.loss_sum.address,
        history: op.history.address,
        control: op.control.address,
        status: op.status.address,
        sigma_factor: op.sigma_factor,
        interval: op.interval() as u32,
        least: op.least() as u32,
        padding: 0,
    };
    queue.launch_block("skip_step", Grid::line(1, 32), &block)
}

/// See [`VoidStep`].
pub(super) fn void_step(op: &VoidStep, queue: &Queue<'_>) -> Result<()> {
    queue.launch("void_step", Grid::line(1, 1), &[op.beyond.into(), op.status.into()])
}
