//! Losses.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::ops::shape::LoadWidth;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CrossEntropy, Mse};

/// Shared memory that a loss kernel declares itself, rounded up.
const DECLARED: usize = 1024;

kernel_struct! {
    /// The struct of the same name in `kernels/losses/loss.cu`; 0 is the null pointer.
    CrossEntropyArgs {
        u64: logits, targets, losses, control, z_losses, weights;
        f32: z_multiplier, soft_cap;
        u32: columns, vocab;
    }
}

impl KernelOperation for CrossEntropy {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    /// A row is kept in shared memory if it fits.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        let row_bytes = columns * dtype.size();
        // Without a gradient the row is read only once.
        let fits = row_bytes + DECLARED <= queue.gpu().shared_bytes as usize;
        let cached = self.control.is_some() && fits && load == LoadWidth::Vector;
        let name = if cached { "cross_entropy_cached" } else { "cross_entropy" };
        // At least two warps: the kernel relies on barriers.
        let threads = (columns / load.values(dtype)).next_multiple_of(32).clamp(64, 512);
        let shared = if cached { row_bytes as u32 } else { 0 };
        let block = CrossEntropyArgs {
            logits: self.logits.address,
            targets: self.targets.address,
            losses: self.losses.address,
            control: self.control.map_or(0, |control| control.address),
            z_losses: self.z_loss.map_or(0, |z_loss| z_loss.losses.address),
            weights: self.weights.map_or(0, |weights| weights.address),
            z_multiplier: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier),
            soft_cap: self.soft_cap.unwrap_or(0.0),
            columns: columns as u32,
            vocab: self.vocab as u32,
        };
        queue.launch_block(&load.kernel(name, dtype), Grid { shared, ..Grid::line(rows, threads as u32) }, &block)
    }
}

impl KernelOperation for Mse {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.prediction.shape.rows(), self.prediction.shape.last(), self.prediction.dtype);
        let (grad, control) = self.grad.unzip();
        let load = LoadWidth::of(width, [self.prediction, self.target].into_iter().chain(grad));
        let threads = (width / load.values(dtype)).next_multiple_of(32).clamp(32, 256);
        queue.launch(
            &load.kernel("mse", dtype),
            Grid::line(rows, threads as u32),
            args! { self.prediction, self.target, self.losses, grad, control; U32: width },
        )
    }
}
