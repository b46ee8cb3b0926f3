//! From the order of tokens to that of experts, and back.

use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::cuda::ops::shape::{LoadWidth, over_rows};
use crate::ops::{CombineRows, GatherRows};
use crate::{DType, Result};

/// See [`GatherRows`].
pub(in crate::cuda::ops) fn gather_rows(op: &GatherRows, queue: &Queue<'_>) -> Result<()> {
    let (tokens, width) = (op.input.shape.rows(), op.input.shape.last());
    let load = LoadWidth::of(width, [op.input, op.output]);
    // Values are only moved: two of 8 bits as one of 16.
    let (width, dtype) = match op.output.dtype {
        of_8_bits if of_8_bits.is_fp8() => (width / 2, DType::Bf16),
        dtype => (width, dtype),
    };
    let grid = over_rows(tokens, width / load.values(dtype), queue);
    queue.launch(
        &load.kernel("gather_rows", dtype),
        grid,
        &[
            op.input.into(),
            op.rows.into(),
            op.output.into(),
            Arg::U32(tokens as u32),
            Arg::U32(width as u32),
            Arg::U32((op.rows.elements() / tokens) as u32),
            Arg::U32(op.output.shape.rows() as u32),
        ],
    )
}

/// See [`CombineRows`].
pub(in crate::cuda::ops) fn combine_rows(op: &CombineRows, queue: &Queue<'_>) -> Result<()> {
    let (tokens, width, dtype) = (op.output.shape.rows(), op.output.shape.last(), op.output.dtype);
    let load = LoadWidth::of(width, [op.input, op.output].into_iter().chain(op.also));
    let grid = over_rows(tokens, width / load.values(dtype), queue);
    queue.launch(
        &load.kernel("combine_rows", dtype),
        grid,
        &[
            op.input.into(),
            op.rows.into(),
            op.also.into(),
            op.output.into(),
            Arg::U32(tokens as u32),
            Arg::U32(width as u32),
            Arg::U32(op.rows.shape.last() as u32),
            Arg::U32(op.input.shape.rows() as u32),
        ],
    )
}
