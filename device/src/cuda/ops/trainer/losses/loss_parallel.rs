//! Cross-entropy over a vocabulary that is split across ranks.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file};
use crate::cuda::ops::shape::LoadWidth;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CrossEntropyJoin, CrossEntropyPart};

/// The grid of a block per row, of at least two warps: the kernels rely on barriers.
fn grid(rows: usize, packs: usize) -> Grid {
    Grid::line(rows, packs.next_multiple_of(32).clamp(64, 512) as u32)
}

impl KernelOperation for CrossEntropyPart {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        queue.launch(&load.kernel("cross_entropy_part", dtype), grid(rows, columns / load.values(dtype)), args! {
            self.logits, self.targets, self.stats; U32: rows, columns, self.part.real(columns), self.part.first_token;
            F32: self.soft_cap.unwrap_or(0.0)
        })
    }
}

impl KernelOperation for CrossEntropyJoin {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        let ranks = self.stats.elements() / (3 * rows).max(1);
        queue.launch(
            &load.kernel("cross_entropy_join", dtype),
            grid(rows, columns / load.values(dtype)),
            args! {
                self.logits, self.targets, self.stats, self.losses, self.control, self.weights,
                self.z_loss.map(|z_loss| z_loss.losses); F32: self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier);
                U32: rows, columns, self.part.real(columns), self.part.first_token, self.part.vocab, ranks;
                F32: self.soft_cap.unwrap_or(0.0)
            },
        )
    }
}
