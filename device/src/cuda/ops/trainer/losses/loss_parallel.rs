//! Cross-entropy over a vocabulary that is split across ranks.

use crate::Result;
use crate::cuda::kernels::{Arg, Grid, KernelFile, kernel_file};
use crate::cuda::ops::shape::LoadWidth;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CrossEntropyJoin, CrossEntropyPart};

/// One block per row, of at least two warps: the kernels rely on barriers.
fn grid(rows: usize, packs: usize) -> Grid {
    Grid::line(rows, packs.next_multiple_of(32).clamp(64, 512) as u32)
}

impl KernelOperation for CrossEntropyPart {
    const FILES: &'static [KernelFile] = &[kernel_file!("losses/loss.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) = (self.logits.shape.rows(), self.logits.shape.last(), self.logits.dtype);
        let load = LoadWidth::of(columns, [self.logits]);
        queue.launch(
            &load.kernel("cross_entropy_part", dtype),
            grid(rows, columns / load.values(dtype)),
            &[
                self.logits.into(),
                self.targets.into(),
                self.stats.into(),
                Arg::U32(rows as u32),
                Arg::U32(columns as u32),
                Arg::U32(self.part.real(columns) as u32),
                Arg::U32(self.part.first_token as u32),
                Arg::F32(self.soft_cap.unwrap_or(0.0)),
            ],
        )
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
            &[
                self.logits.into(),
                self.targets.into(),
                self.stats.into(),
                self.losses.into(),
                self.control.into(),
                self.weights.into(),
                self.z_loss.map(|z_loss| z_loss.losses).into(),
                Arg::F32(self.z_loss.map_or(0.0, |z_loss| z_loss.multiplier)),
                Arg::U32(rows as u32),
                Arg::U32(columns as u32),
                Arg::U32(self.part.real(columns) as u32),
                Arg::U32(self.part.first_token as u32),
                Arg::U32(self.part.vocab as u32),
                Arg::U32(ranks as u32),
                Arg::F32(self.soft_cap.unwrap_or(0.0)),
            ],
        )
    }
}
