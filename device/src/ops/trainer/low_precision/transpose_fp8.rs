//! The transposed copy of an 8-bit matrix.

use crate::ops::{Operation, ensure, tensors};
use crate::{Result, Tensor};

/// Transposes a matrix in an 8-bit floating type. [`Quantize`](crate::ops::Quantize) makes both copies of a matrix in one
/// pass; this is for a matrix that came from other ranks in 8 bits. The scale of the whole tensor does not change.
#[derive(Clone, Debug, PartialEq)]
pub struct TransposeFp8 {
    /// `(rows, columns)`.
    pub input: Tensor,
    /// `(columns, rows)`, of the same type.
    pub output: Tensor,
}

impl Operation for TransposeFp8 {
    const NAME: &'static str = "transpose_fp8";

    fn check(&self) -> Result<()> {
        let TransposeFp8 { input, output } = self;
        ensure(Self::NAME, input.dtype.is_fp8() && input.dtype == output.dtype, || {
            format!("`input` is {} and `output` {}, needs one 8-bit floating type", input.dtype, output.dtype)
        })?;
        let (rows, columns) = (input.shape.rows(), input.shape.last());
        ensure(Self::NAME, output.shape.rows() == columns && output.shape.last() == rows, || {
            format!("`output` is {:?}, needs ({columns}, {rows})", output.shape)
        })
    }

    tensors! { read input; write output }
}
