//! 8-bit copies with scales for groups or blocks of values.

use super::source::{QuantizeArgs, Source};
use crate::Result;
use crate::cuda::{Grid, Queue, kernel_struct};
use crate::ops::{BLOCK, Fp8Matrix, Quantize, QuantizeSource, Scale, add_partial};

/// Threads of a tile of `kernels/low_precision/quantize_blocks.cu`. A tile has [`BLOCK`] rows and columns.
const THREADS: usize = 512;

kernel_struct! {
    /// `QuantizeBlockwiseArgs` of `kernels/low_precision/quantize_blocks.cu`; 0 is the null pointer.
    QuantizeBlockwiseArgs {
        QuantizeArgs: q;
        u64: rows_scale, columns_scale;
        u32: square, rows_stride, columns_stride, across, halves, reserved;
    }
}

/// Whether copies have scales for groups or blocks.
pub(super) fn is_for(op: &Quantize) -> bool {
    op.rows.iter().chain(&op.columns).any(|copy| copy.scale.is_by_block())
}

/// See [`Quantize`].
pub(super) fn quantize(op: &Quantize, queue: &Queue<'_>) -> Result<()> {
    let ((rows, columns), source) = (op.source.dimensions(), Source::of(&op.source));
    let copies = || op.rows.iter().chain(&op.columns);
    // Both halves of a gradient of `[gate | up]` follow from the same inputs. If no tile lies in both, a block does a
    // tile of each.
    let in_pairs = matches!(op.source, QuantizeSource::GluBackward { .. }) && (columns / 2).is_multiple_of(BLOCK);
    let halves = if in_pairs { 2 } else { 1 };
    let (row_tiles, across) = (rows.div_ceil(BLOCK), (columns / halves).div_ceil(BLOCK));
    let values = |copy: &Option<Fp8Matrix>| copy.map_or(0, |copy| copy.values.address);
    let scales = |copy: &Option<Fp8Matrix>| copy.map_or(0, |copy| copy.scale.tensor().address);
    let stride = |copy: &Option<Fp8Matrix>| copy.map_or(0, |copy| copy.scale.tensor().shape.last() as u32);
    let mut q = source.block(rows);
    (q.rows_out, q.columns_out) = (values(&op.rows), values(&op.columns));
    q.partial = if op.sums.is_some() { queue.scratch } else { 0 };
    let block = QuantizeBlockwiseArgs {
        q,
        rows_scale: scales(&op.rows),
        columns_scale: scales(&op.columns),
        square: copies().any(|copy| matches!(copy.scale, Scale::Blocks(_))).into(),
        rows_stride: stride(&op.rows),
        columns_stride: stride(&op.columns),
        across: across as u32,
        halves: halves as u32,
        reserved: 0,
    };
    let kernel = source.kernel("quantize_blocks", true);
    queue.launch_block(&kernel, Grid::line(row_tiles * across, THREADS), &block)?;
    match op.sums {
        Some(sums) => add_partial(row_tiles, [sums], op.accumulate, queue),
        None => Ok(()),
    }
}
