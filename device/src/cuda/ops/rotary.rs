//! Rotary position embedding.

use super::shape::{LoadWidth, over_rows};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::Rotary;

/// See [`Rotary`].
pub(super) fn rotary(op: &Rotary, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.qkv.shape.rows(), op.qkv.shape.last(), op.qkv.dtype);
    let (seq, rotated) = (op.qkv.shape.sizes()[1], op.heads + op.kv_heads);
    let half = width / (op.heads + 2 * op.kv_heads) / 2;
    let load = LoadWidth::of(half, [op.qkv, op.table]);
    let grid = over_rows(rows, rotated * (half / load.values(dtype)), queue);
    queue.launch(
        &load.kernel("rotary", dtype),
        grid,
        &[
            op.qkv.into(),
            op.table.into(),
            Arg::U32(rows as u32),
            Arg::U32(seq as u32),
            Arg::U32(width as u32),
            Arg::U32(rotated as u32),
            Arg::U32(half as u32),
            Arg::F32(if op.inverse { -1.0 } else { 1.0 }),
        ],
    )
}
