//! Losses of 8-bit copies: values beyond the largest number of the type, and values too small for it.

mod host;

use super::quantize::launch::source::{PACK, QuantizeArgs, Source};
use crate::cuda::{Arg, Grid, KernelFile, KernelOperation, Queue, kernel_file, kernel_struct};
use crate::ops::{
    Accesses, Fp8Matrix, Operation, QuantizeSource, Scale, ensure, ensure_dtype, ensure_elements, tensors,
};
use crate::{DType, Result, Tensor};

/// Counts over the values of a matrix, as they lie in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct QuantizeCounts {
    /// All values.
    pub values: u64,
    /// Zeros.
    pub zeros: u64,
    /// NaN and infinities.
    pub not_finite: u64,
    /// Finite values beyond the largest number of the type, by more than half of the step to a next number, if there
    /// were one.
    pub saturated: u64,
    /// Finite values that are not 0, but 0 in 8 bits.
    pub underflowed: u64,
}

/// Bytes of [`QuantizeCounts`].
const BYTES: usize = size_of::<QuantizeCounts>();

/// Counts the losses of an 8-bit copy, and adds them to earlier counts. Reads source and copy; changes neither.
#[derive(Clone, Debug, PartialEq)]
pub struct CountQuantized {
    /// The matrix `(rows, columns)`.
    pub source: QuantizeSource,
    /// `(rows, columns)`: its copy. Values saturate only with a [`Scale::Tensor`]: the others are made from the values
    /// that they scale.
    pub copy: Fp8Matrix,
    /// u8, the bytes of a [`QuantizeCounts`], updated.
    pub counts: Tensor,
}

impl Operation for CountQuantized {
    const NAME: &'static str = "count_quantized";

    fn check(&self) -> Result<()> {
        let (rows, columns) = self.source.dimensions();
        self.source.check(Self::NAME)?;
        self.copy.check(Self::NAME, "copy", rows, columns)?;
        check_counts(Self::NAME, &self.counts)?;
        ensure_elements(Self::NAME, "counts", &self.counts, BYTES)
    }

    fn accesses(&self) -> Accesses {
        let scale = match self.copy.scale {
            Scale::Tensor(scale) => Some(scale),
            _ => None,
        };
        Accesses::new(self.source.reads().into_iter().chain([self.copy.values, self.counts]), [self.counts])
            .reads(scale)
    }

    tensors! { source, copy, counts }
}

/// Sums of counts by kind, as f32: of all `values`, of those that `saturated`, of those that `underflowed`.
#[derive(Clone, Debug, PartialEq)]
pub struct SumCounts {
    /// u8, `n` [`QuantizeCounts`] of kinds 0, 1, ..., 0, 1, ...
    pub counts: Tensor,
    /// `(kinds, 3)`, f32, written.
    pub sums: Tensor,
}

impl Operation for SumCounts {
    const NAME: &'static str = "sum_counts";

    fn check(&self) -> Result<()> {
        check_counts(Self::NAME, &self.counts)?;
        ensure_dtype(Self::NAME, "sums", &self.sums, DType::F32)?;
        let (kinds, bytes) = (self.sums.shape.rows(), self.counts.elements());
        ensure(Self::NAME, self.sums.shape.last() == 3, || {
            format!("`sums` is {:?}, needs 3 columns", self.sums.shape)
        })?;
        ensure(Self::NAME, kinds > 0 && bytes.is_multiple_of(kinds * BYTES), || {
            format!("`counts` has {bytes} bytes, needs a multiple of {BYTES} for each of {kinds} kinds")
        })
    }

    tensors! { read counts; write sums }
}

fn check_counts(op: &'static str, counts: &Tensor) -> Result<()> {
    ensure_dtype(op, "counts", counts, DType::U8)?;
    ensure(op, counts.address.is_multiple_of(8), || "`counts` begins at no multiple of 8".into())
}

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
