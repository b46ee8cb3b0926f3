//! Sums of columns.

use super::Queue;
use super::shape::Path;
use crate::cuda::{Arg, Grid};
use crate::ops::BiasGrad;
use crate::{DType, Result, Tensor};

/// Parts that the rows are cut into, so that the GPU is full and each part is worth a block.
fn chunks(rows: usize, columns: usize, width: usize, multiprocessors: usize) -> usize {
    let tiles = columns.div_ceil(32 * width).max(1);
    (multiprocessors * 8 / tiles).clamp(1, 65_535).min(rows.div_ceil(64))
}

/// See [`BiasGrad`]: chunks of rows first, then the chunks in order.
pub(super) fn bias_grad(op: &BiasGrad, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns, dtype) = (op.grad_output.shape.rows(), op.grad_output.shape.last(), op.grad_output.dtype);
    let path = Path::of(columns, [op.grad_output]);
    let chunks = chunks(rows, columns, path.width(dtype), queue.multiprocessors());
    let chunk_rows = rows.div_ceil(chunks.max(1));
    let tiles = columns.div_ceil(32 * path.width(dtype));
    queue.launch(
        &path.kernel("column_sums", dtype),
        Grid { blocks: (tiles as u32, chunks as u32, 1), threads: 256, shared: 0 },
        &[
            op.grad_output.into(),
            Arg::Pointer(queue.scratch),
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
            Arg::U32(chunk_rows as u32),
        ],
    )?;
    add_partial(queue.scratch, chunks, &op.grad_bias, op.accumulate, queue)
}

/// The partial sums of [`bias_grad`]; with vectors there are most chunks.
pub(super) fn scratch_bytes(op: &BiasGrad, multiprocessors: usize) -> usize {
    let (rows, columns) = (op.grad_output.shape.rows(), op.grad_output.shape.last());
    chunks(rows, columns, Path::Vector.width(op.grad_output.dtype), multiprocessors) * columns * DType::F32.size()
}

/// `output (+)= sum over chunks of partial`, `(chunks, columns)`.
pub(super) fn add_partial(
    partial: u64,
    chunks: usize,
    output: &Tensor,
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    let columns = output.elements();
    queue.launch(
        "add_partial_columns",
        Grid::line(columns.div_ceil(32), 1024),
        &[
            Arg::Pointer(partial),
            (*output).into(),
            Arg::U32(chunks as u32),
            Arg::U32(columns as u32),
            Arg::U32(accumulate.into()),
        ],
    )
}
