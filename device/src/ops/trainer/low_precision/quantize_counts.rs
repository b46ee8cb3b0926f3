//! Losses of 8-bit copies: values beyond the largest number of the type, and values too small for it.

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
