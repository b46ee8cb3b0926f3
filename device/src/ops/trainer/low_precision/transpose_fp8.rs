//! The transposed copy of an 8-bit matrix.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, args, kernel_file};
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

/// The sides of a tile of `kernels/low_precision/transpose_fp8.cu`.
const TILE: usize = 128;

impl KernelOperation for TransposeFp8 {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/transpose_fp8.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns) = (self.input.shape.rows(), self.input.shape.last());
        let aligned = |address: u64, width: usize| address.is_multiple_of(16) && width.is_multiple_of(16);
        let wide = aligned(self.input.address, columns) && aligned(self.output.address, rows);
        let kernel = if wide { "transpose_fp8_wide" } else { "transpose_fp8" };
        let grid = Grid::line(rows.div_ceil(TILE) * columns.div_ceil(TILE), 256);
        queue.launch(kernel, grid, args! { self.input, self.output; U32: rows, columns })
    }
}
