//! The operations that Muon needs besides matrix products.

use super::shape::{LoadWidth, over_packs, over_rows};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{Corner, MatrixPolynomial, ScaleBlock};

/// See [`ScaleBlock`].
pub(super) fn scale_block(op: &ScaleBlock, queue: &Queue<'_>) -> Result<()> {
    let start = |block: &Corner| {
        let first = block.row * block.matrix.shape.last() + block.column;
        Arg::Pointer(block.matrix.address + (first * block.matrix.dtype.size()) as u64)
    };
    let width = |block: &Corner| Arg::U64(block.matrix.shape.last() as u64);
    queue.launch(
        &format!("scale_block_{}_{}", op.from.matrix.dtype, op.to.matrix.dtype),
        over_rows(op.rows, op.columns, queue),
        &[
            start(&op.from),
            width(&op.from),
            start(&op.to),
            width(&op.to),
            Arg::U32(op.rows as u32),
            Arg::U32(op.columns as u32),
            Arg::F32(op.factor),
            op.square_sum.into(),
        ],
    )
}

/// See [`MatrixPolynomial`].
pub(super) fn matrix_polynomial(op: &MatrixPolynomial, queue: &Queue<'_>) -> Result<()> {
    let (n, dtype, [a, b, c]) = (op.x.shape.last(), op.x.dtype, op.coefficients);
    let load = LoadWidth::of(n, [op.x, op.square, op.output]);
    queue.launch(
        &load.kernel("matrix_polynomial", dtype),
        over_packs(n * n / load.values(dtype), queue),
        &[op.x.into(), op.square.into(), op.output.into(), Arg::U64(n as u64), Arg::F32(a), Arg::F32(b), Arg::F32(c)],
    )
}
