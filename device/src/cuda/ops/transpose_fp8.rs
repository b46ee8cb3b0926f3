//! The transposed copy of an 8-bit matrix.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::TransposeFp8;

/// The sides of a tile of `kernels/transpose_fp8.cu`.
const TILE: usize = 128;

/// See [`TransposeFp8`].
pub(super) fn transpose_fp8(op: &TransposeFp8, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns) = (op.input.shape.rows(), op.input.shape.last());
    let aligned = |address: u64, width: usize| address.is_multiple_of(16) && width.is_multiple_of(16);
    let wide = aligned(op.input.address, columns) && aligned(op.output.address, rows);
    queue.launch(
        if wide { "transpose_fp8_wide" } else { "transpose_fp8" },
        Grid::line(rows.div_ceil(TILE) * columns.div_ceil(TILE), 256),
        &[op.input.into(), op.output.into(), Arg::U32(rows as u32), Arg::U32(columns as u32)],
    )
}
