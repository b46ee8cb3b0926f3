//! From the order of tokens to that of experts, and back.

use crate::ops::{HasTensors, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_shape, tensors};
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

/// Sorts pairs by expert. Pairs with an expert of another rank are dropped here.
#[derive(Clone, Debug, PartialEq)]
pub struct SortByExpert {
    /// `(tokens, k)`, i32: the expert of each pair; a number that is one too high if the pair is dropped.
    pub chosen: Tensor,
    /// The number of this rank's first expert.
    pub first: usize,
    /// Written.
    pub order: ExpertRows,
}

impl Operation for SortByExpert {
    const NAME: &'static str = "sort_by_expert";

    fn check(&self) -> Result<()> {
        let ExpertRows { offsets, pairs, rows } = &self.order;
        let all = [("chosen", &self.chosen), ("offsets", offsets), ("pairs", pairs), ("rows", rows)];
        all.iter().try_for_each(|(name, tensor)| ensure_dtype(Self::NAME, name, tensor, DType::I32))?;
        ensure_elements(Self::NAME, "pairs", pairs, self.chosen.elements())?;
        ensure_elements(Self::NAME, "rows", rows, self.chosen.elements())?;
        ensure(Self::NAME, offsets.elements() >= 2, || "there is no expert".into())
    }

    tensors! { read chosen; write order }
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
        ensure_dtype(Self::NAME, "also", also, DType::F32)?;
        ensure_elements(Self::NAME, "also", also, tokens * width)
    }

    tensors! { read input, rows, also; write output }
}
