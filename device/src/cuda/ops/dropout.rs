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
    let place = u32::from(site.layer) << 16 | u32::from(site.site);
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
            Arg::U32(site.seed as u32),
            Arg::U32((site.seed >> 32) as u32 ^ place),
            Arg::U32((f64::from(site.rate) * 4_294_967_296.0) as u32),
            Arg::F32(1.0 / (1.0 - site.rate)),
        ],
    )
}
