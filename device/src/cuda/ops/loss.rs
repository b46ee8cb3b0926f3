//! Losses.

use super::shape::LoadWidth;
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{CrossEntropy, Mse};

/// Shared memory that a loss kernel declares itself, rounded up.
const DECLARED: usize = 1024;

/// The struct of the same name in `kernels/loss.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct CrossEntropyArgs {
    logits: u64,
    targets: u64,
    losses: u64,
    control: u64,
    z_losses: u64,
    weights: u64,
    z_multiplier: f32,
    soft_cap: f32,
    columns: u32,
    vocab: u32,
}

/// See [`CrossEntropy`]. A row is kept in shared memory if it fits.
pub(super) fn cross_entropy(op: &CrossEntropy, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns, dtype) = (op.logits.shape.rows(), op.logits.shape.last(), op.logits.dtype);
    let load = LoadWidth::of(columns, [op.logits]);
    let row_bytes = columns * dtype.size();
    // Without a gradient the row is read only once.
    let fits = row_bytes + DECLARED <= queue.gpu().shared_bytes as usize;
    let cached = op.control.is_some() && fits && load == LoadWidth::Vector;
    let name = if cached { "cross_entropy_cached" } else { "cross_entropy" };
    // At least two warps: the kernel relies on barriers.
    let threads = (columns / load.values(dtype)).next_multiple_of(32).clamp(64, 512);
    let shared = if cached { row_bytes as u32 } else { 0 };
    let block = CrossEntropyArgs {
        logits: op.logits.address,
        targets: op.targets.address,
        losses: op.losses.address,
        control: op.control.map_or(0, |control| control.address),
        z_losses: op.z_loss.map_or(0, |z_loss| z_loss.losses.address),
        weights: op.weights.map_or(0, |weights| weights.address),
        z_multiplier: op.z_loss.map_or(0.0, |z_loss| z_loss.multiplier),
        soft_cap: op.soft_cap.unwrap_or(0.0),
        columns: columns as u32,
        vocab: op.vocab as u32,
    };
    queue.launch_block(&load.kernel(name, dtype), Grid { shared, ..Grid::line(rows, threads as u32) }, &block)
}

/// See [`Mse`].
pub(super) fn mse(op: &Mse, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.prediction.shape.rows(), op.prediction.shape.last(), op.prediction.dtype);
    let (grad, control) = op.grad.unzip();
    let load = LoadWidth::of(width, [op.prediction, op.target].into_iter().chain(grad));
    let threads = (width / load.values(dtype)).next_multiple_of(32).clamp(32, 256);
    queue.launch(
        &load.kernel("mse", dtype),
        Grid::line(rows, threads as u32),
        &[
            op.prediction.into(),
            op.target.into(),
            op.losses.into(),
            grad.into(),
            control.into(),
            Arg::U32(width as u32),
        ],
    )
}
