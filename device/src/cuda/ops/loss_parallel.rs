//! Cross-entropy over a vocabulary that is split across ranks.

use super::shape::LoadWidth;
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{CrossEntropyJoin, CrossEntropyPart};

/// One block per row, of at least two warps: the kernels rely on barriers.
fn grid(rows: usize, packs: usize) -> Grid {
    Grid::line(rows, packs.next_multiple_of(32).clamp(64, 512) as u32)
}

/// See [`CrossEntropyPart`].
pub(super) fn part(op: &CrossEntropyPart, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns, dtype) = (op.logits.shape.rows(), op.logits.shape.last(), op.logits.dtype);
    let load = LoadWidth::of(columns, [op.logits]);
    queue.launch(
        &load.kernel("cross_entropy_part", dtype),
        grid(rows, columns / load.values(dtype)),
        &[
            op.logits.into(),
            op.targets.into(),
            op.stats.into(),
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
            Arg::U32(op.part.real(columns) as u32),
            Arg::U32(op.part.first_token as u32),
            Arg::F32(op.soft_cap.unwrap_or(0.0)),
        ],
    )
}

/// See [`CrossEntropyJoin`].
pub(super) fn join(op: &CrossEntropyJoin, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns, dtype) = (op.logits.shape.rows(), op.logits.shape.last(), op.logits.dtype);
    let load = LoadWidth::of(columns, [op.logits]);
    let ranks = op.stats.elements() / (3 * rows).max(1);
    queue.launch(
        &load.kernel("cross_entropy_join", dtype),
        grid(rows, columns / load.values(dtype)),
        &[
            op.logits.into(),
            op.targets.into(),
            op.stats.into(),
            op.losses.into(),
            op.control.into(),
            op.weights.into(),
            op.z_loss.map(|z_loss| z_loss.losses).into(),
            Arg::F32(op.z_loss.map_or(0.0, |z_loss| z_loss.multiplier)),
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
            Arg::U32(op.part.real(columns) as u32),
            Arg::U32(op.part.first_token as u32),
            Arg::U32(op.part.vocab as u32),
            Arg::U32(ranks as u32),
            Arg::F32(op.soft_cap.unwrap_or(0.0)),
        ],
    )
}
