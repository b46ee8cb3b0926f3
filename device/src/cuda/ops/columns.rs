//! Sums of columns.

use super::shape::LoadWidth;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::BiasGrad;
use crate::{DType, Result, Tensor};

/// The number of parts that the rows are split into. It fills the GPU, and each part is large enough for a block.
fn chunks(rows: usize, columns: usize, width: usize, multiprocessors: usize) -> usize {
    let tiles = columns.div_ceil(32 * width).max(1);
    (multiprocessors * 8 / tiles).clamp(1, 65_535).min(rows.div_ceil(64))
}

/// See [`BiasGrad`]: first the sums of chunks of rows, then their sum, in order.
pub(super) fn bias_grad(op: &BiasGrad, queue: &Queue<'_>) -> Result<()> {
    let (rows, columns, dtype) = (op.grad_output.shape.rows(), op.grad_output.shape.last(), op.grad_output.dtype);
    let load = LoadWidth::of(columns, [op.grad_output]);
    let chunks = chunks(rows, columns, load.values(dtype), queue.multiprocessors());
    let chunk_rows = rows.div_ceil(chunks.max(1));
    let tiles = columns.div_ceil(32 * load.values(dtype));
    queue.launch(
        &load.kernel("column_sums", dtype),
        Grid { blocks: (tiles as u32, chunks as u32, 1), threads: 256, shared: 0 },
        &[
            op.grad_output.into(),
            Arg::Pointer(queue.scratch),
            Arg::U32(rows as u32),
            Arg::U32(columns as u32),
            Arg::U32(chunk_rows as u32),
        ],
    )?;
    add_partial(chunks, [Some(op.grad_bias), None, None], op.accumulate, queue)
}

/// Scratch for the partial sums of [`bias_grad`]. Vector loads give the most chunks.
pub(super) fn scratch_bytes(op: &BiasGrad, multiprocessors: usize) -> usize {
    let (rows, columns) = (op.grad_output.shape.rows(), op.grad_output.shape.last());
    chunks(rows, columns, LoadWidth::Vector.values(op.grad_output.dtype), multiprocessors) * columns * DType::F32.size()
}

/// `output (+)= sum over chunks of partial`, for each of `outputs` that is present, all of one size. The partial sums
/// are `(outputs, chunks, columns)`, in scratch.
pub(super) fn add_partial(
    chunks: usize,
    outputs: [Option<Tensor>; 3],
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    add_partial_at(queue.scratch, chunks, outputs, accumulate, queue)
}

/// As [`add_partial`], of partial sums at another address.
pub(super) fn add_partial_at(
    partial: u64,
    chunks: usize,
    outputs: [Option<Tensor>; 3],
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    let mut present = outputs.into_iter().flatten();
    let [first, second, third] = [present.next(), present.next(), present.next()];
    if first.is_none() {
        return Ok(());
    }
    let columns = first.map_or(0, |output| output.elements());
    let count = [first, second, third].iter().flatten().count();
    queue.launch(
        "add_partial_columns",
        Grid { blocks: (columns.div_ceil(32) as u32, count as u32, 1), threads: 1024, shared: 0 },
        &[
            Arg::Pointer(partial),
            first.into(),
            second.into(),
            third.into(),
            Arg::U32(chunks as u32),
            Arg::U32(columns as u32),
            Arg::U32(accumulate.into()),
        ],
    )
}
