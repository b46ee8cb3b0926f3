//! Counts of the values that 8-bit copies lose.

use super::quantize::{PACK, QuantizeArgs, Source};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{CountQuantized, QuantizeCounts, Scale, SumCounts};

/// `CountQuantized` of `kernels/quantize_counts.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct CountArgs {
    quantize: QuantizeArgs,
    counts: u64,
    edge: f32,
    unused: u32,
}

/// Enough for every GPU.
const BLOCKS: usize = 1024;

/// See [`CountQuantized`].
pub(super) fn count_quantized(op: &CountQuantized, queue: &Queue<'_>) -> Result<()> {
    let ((rows, _), source, copy) = (op.source.dimensions(), Source::of(&op.source), &op.copy);
    let (scale, edge) = match copy.scale {
        Scale::Tensor(scale) => (scale.address, copy.values.dtype.saturates_above()),
        _ => (0, f32::INFINITY),
    };
    let quantize = QuantizeArgs { rows_out: copy.values.address, rows_scale: scale, ..source.block(rows) };
    let block = CountArgs { quantize, counts: op.counts.address, edge, unused: 0 };
    let blocks = (rows * source.width.div_ceil(PACK)).div_ceil(256).clamp(1, BLOCKS);
    let kernel = source.kernel("count_quantized", source.vector(None));
    queue.launch_block(&kernel, Grid::line(blocks, 256), &block)
}

/// See [`SumCounts`]. A block is a kind.
pub(super) fn sum_counts(op: &SumCounts, queue: &Queue<'_>) -> Result<()> {
    let counts = op.counts.elements() / size_of::<QuantizeCounts>();
    let arguments = [op.counts.into(), Arg::U32(counts as u32), op.sums.into()];
    queue.launch("sum_counts", Grid::line(op.sums.shape.rows(), 32), &arguments)
}
