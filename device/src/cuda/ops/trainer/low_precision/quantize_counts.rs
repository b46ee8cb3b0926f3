//! Counts of the values that 8-bit copies lose.

use super::quantize_source::{PACK, QuantizeArgs, Source};
use crate::Result;
use crate::cuda::kernels::{Arg, Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CountQuantized, QuantizeCounts, Scale, SumCounts};

kernel_struct! {
    /// `CountQuantized` of `kernels/low_precision/quantize_counts.cu`.
    CountArgs {
        QuantizeArgs: quantize;
        u64: counts;
        f32: edge;
        u32: unused;
    }
}

/// Enough for every GPU.
const BLOCKS: usize = 1024;

impl KernelOperation for CountQuantized {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/quantize_counts.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ((rows, _), source, copy) = (self.source.dimensions(), Source::of(&self.source), &self.copy);
        let (scale, edge) = match copy.scale {
            Scale::Tensor(scale) => (scale.address, copy.values.dtype.saturates_above()),
            _ => (0, f32::INFINITY),
        };
        let quantize = QuantizeArgs { rows_out: copy.values.address, rows_scale: scale, ..source.block(rows) };
        let block = CountArgs { quantize, counts: self.counts.address, edge, unused: 0 };
        let blocks = (rows * source.width.div_ceil(PACK)).div_ceil(256).clamp(1, BLOCKS);
        let kernel = source.kernel("count_quantized", source.vector(None));
        queue.launch_block(&kernel, Grid::line(blocks, 256), &block)
    }
}

impl KernelOperation for SumCounts {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/quantize_counts.cu")];

    /// A block is a kind.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let counts = self.counts.elements() / size_of::<QuantizeCounts>();
        let arguments = [self.counts.into(), Arg::U32(counts as u32), self.sums.into()];
        queue.launch("sum_counts", Grid::line(self.sums.shape.rows(), 32), &arguments)
    }
}
