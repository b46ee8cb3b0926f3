//! Dropout.

use super::shape::{LoadWidth, over_rows};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::Dropout;

/// See [`Dropout`].
pub(super) fn dropout(op: &Dropout, queue: &Queue<'_>) -> Result<()> {
    let (rows, channels, dtype) = (op.input.shape.rows(), op.input.shape.last(), op.input.dtype);
    let site = &op.site;
    let [key_low, key_high] = site.key();
    let load = LoadWidth::of(channels, [op.input, op.output]);
    let grid = over_rows(rows, channels / load.values(dtype), queue);
    queue.launch(
        &load.kernel("dropout", dtype),
        grid,
        &[
            op.input.into(),
            op.output.into(),
            site.record.into(),
            Arg::U32(rows as u32),
            Arg::U32(op.site.part.first_row as u32),
            Arg::U32(op.tokens() as u32),
            Arg::U32(channels as u32),
            Arg::U32(key_low),
            Arg::U32(key_high),
            Arg::U32(site.threshold()),
            Arg::F32(site.keep_scale()),
        ],
    )
}
