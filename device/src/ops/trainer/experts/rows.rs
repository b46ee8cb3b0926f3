//! From the order of tokens to that of experts, and back.

mod host;

use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_rows};
use crate::ops::{
    HasTensors, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_shape, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};

/// The order of pairs by expert. Pairs of an expert keep their order. Those that are dropped have the last rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertRows {
    /// `(experts + 1)`, i32: the first row of each expert, then the number of rows that experts have.
    pub offsets: Tensor,
    /// `(tokens * k)`, i32: the pair of each row; `-1 - pair` if it is dropped.
    pub pairs: Tensor,
    /// `(tokens, k)`, i32: the row of each pair; -1 if it is dropped.
    pub rows: Tensor,
}

impl HasTensors for ExpertRows {
    tensors! { offsets, pairs, rows }
}

/// `output[rows[token, j]] = input[token]`: each row is a copy of its token's. Rows of dropped pairs are not written.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherRows {
    /// `(tokens, width)`, of a floating type, those of 8 bits too.
    pub input: Tensor,
    /// `(tokens, k)`, i32: see [`ExpertRows::rows`].
    pub rows: Tensor,
    /// `(rows, width)`, of `input`'s type. No number in `rows` is beyond them.
    pub output: Tensor,
}

impl Operation for GatherRows {
    const NAME: &'static str = "gather_rows";

    fn check(&self) -> Result<()> {
        match self.input.dtype.is_fp8() {
            true => ensure_dtype(Self::NAME, "output", &self.output, self.input.dtype)?,
            false => ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?,
        }
        let (tokens, pairs, width) = (self.input.shape.rows(), self.rows.elements(), self.input.shape.last());
        ensure(Self::NAME, tokens > 0 && pairs.is_multiple_of(tokens), || {
            format!("{tokens} tokens cannot have {pairs} rows: they have the same number each")
        })?;
        ensure(Self::NAME, !self.input.dtype.is_fp8() || width.is_multiple_of(16), || {
            format!("rows of {width} values of 8 bits: their number must be a multiple of 16")
        })?;
        ensure_elements(Self::NAME, "output", &self.output, self.output.shape.rows() * width)?;
        ensure_dtype(Self::NAME, "rows", &self.rows, DType::I32)
    }

    tensors! { read input, rows; write output }
}

/// `output[token] = sum over its pairs of input[rows[pair]]`, plus `also[token]`. It sums in f32, in the order of choices,
/// and rounds once. A pair that is dropped adds nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct CombineRows {
    /// `(rows, width)`. No number in `rows` is beyond them.
    pub input: Tensor,
    /// `(tokens, k)`, i32: see [`ExpertRows::rows`].
    pub rows: Tensor,
    /// `(tokens, width)`, f32: added last.
    pub also: Option<Tensor>,
    /// `(tokens, width)`, of `input`'s type.
    pub output: Tensor,
}

impl Operation for CombineRows {
    const NAME: &'static str = "combine_rows";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        let (tokens, width) = (self.output.shape.rows(), self.output.shape.last());
        let k = self.rows.shape.last();
        ensure(Self::NAME, self.input.shape.last() == width, || {
            format!("rows of `input` have {} values, needs {width}", self.input.shape.last())
        })?;
        ensure_dtype(Self::NAME, "rows", &self.rows, DType::I32)?;
        ensure_shape(Self::NAME, "rows", &self.rows, &[tokens, k])?;
        let Some(also) = &self.also else { return Ok(()) };
        ensure_values(Self::NAME, "also", also, DType::F32, tokens * width)
    }

    tensors! { read input, rows, also; write output }
}

impl KernelOperation for GatherRows {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_rows.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, width) = (self.input.shape.rows(), self.input.shape.last());
        let load = LoadWidth::of(width, [self.input, self.output]);
        // Values are only moved: two of 8 bits as one of 16.
        let (width, dtype) = match self.output.dtype {
            of_8_bits if of_8_bits.is_fp8() => (width / 2, DType::Bf16),
            dtype => (width, dtype),
        };
        let grid = over_rows(tokens, width / load.values(dtype), queue);
        let arguments = args! {
            self.input, self.rows, self.output; U32: tokens, width, self.rows.elements() / tokens,
            self.output.shape.rows()
        };
        queue.launch(&load.kernel("gather_rows", dtype), grid, arguments)
    }
}

impl KernelOperation for CombineRows {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_rows.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.output].into_iter().chain(self.also));
        let grid = over_rows(tokens, width / load.values(dtype), queue);
        let arguments = args! {
            self.input, self.rows, self.also, self.output; U32: tokens, width, self.rows.shape.last(),
            self.input.shape.rows()
        };
        queue.launch(&load.kernel("combine_rows", dtype), grid, arguments)
    }
}
