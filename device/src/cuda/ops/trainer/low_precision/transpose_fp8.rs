//! The transposed copy of an 8-bit matrix.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, args, kernel_file};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::TransposeFp8;

/// The sides of a tile of `kernels/low_precision/transpose_fp8.cu`.
const TILE: usize = 128;

impl KernelOperation for TransposeFp8 {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/transpose_fp8.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns) = (self.input.shape.rows(), self.input.shape.last());
        let aligned = |address: u64, width: usize| address.is_multiple_of(16) && width.is_multiple_of(16);
        let wide = aligned(self.input.address, columns) && aligned(self.output.address, rows);
        queue.launch(
            if wide { "transpose_fp8_wide" } else { "transpose_fp8" },
            Grid::line(rows.div_ceil(TILE) * columns.div_ceil(TILE), 256),
            args! { self.input, self.output; U32: rows, columns },
        )
    }
}
