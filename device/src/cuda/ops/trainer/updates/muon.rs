//! The operations that Muon needs besides matrix products.

use crate::Result;
use crate::cuda::kernels::{Arg, KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_packs, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Corner, MatrixPolynomial, ScaleBlock};

impl KernelOperation for ScaleBlock {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/muon.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let start = |block: &Corner| {
            let first = block.row * block.matrix.shape.last() + block.column;
            Arg::Pointer(block.matrix.address + (first * block.matrix.dtype.size()) as u64)
        };
        if let Some(values) = values_of_vectors(self) {
            let width = |block: &Corner| Arg::U64((block.matrix.shape.last() / values) as u64);
            let (from, to, columns) = (&self.from, &self.to, self.columns / values);
            let [rows, words] = [self.rows, columns].map(|size| Arg::U32(size as u32));
            let arguments = [start(from), width(from), start(to), width(to), rows, words];
            return queue.launch("copy_block_words", over_rows(self.rows, columns, queue), &arguments);
        }
        let width = |block: &Corner| Arg::U64(block.matrix.shape.last() as u64);
        queue.launch(
            &format!("scale_block_{}_{}", self.from.matrix.dtype, self.to.matrix.dtype),
            over_rows(self.rows, self.columns, queue),
            &[
                start(&self.from),
                width(&self.from),
                start(&self.to),
                width(&self.to),
                Arg::U32(self.rows as u32),
                Arg::U32(self.columns as u32),
                Arg::F32(self.factor),
                self.square_sum.into(),
            ],
        )
    }
}

/// The values of a vector, if the block is copied as it is and its rows are whole vectors.
fn values_of_vectors(op: &ScaleBlock) -> Option<usize> {
    let (from, to) = (op.from.matrix, op.to.matrix);
    let is_copy = op.factor == 1.0 && op.square_sum.is_none() && from.dtype == to.dtype;
    let values = LoadWidth::Vector.values(from.dtype);
    let sizes = [from.shape.last(), to.shape.last(), op.from.column, op.to.column, op.columns];
    let aligned = [from, to].iter().all(|matrix| matrix.address.is_multiple_of(16));
    (is_copy && aligned && sizes.iter().all(|size| size.is_multiple_of(values))).then_some(values)
}

impl KernelOperation for MatrixPolynomial {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/muon.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (n, dtype, [a, b, c]) = (self.x.shape.last(), self.x.dtype, self.coefficients);
        let load = LoadWidth::of(n, [self.x, self.square, self.output]);
        queue.launch(
            &load.kernel("matrix_polynomial", dtype),
            over_packs(n * n / load.values(dtype), queue),
            args! { self.x, self.square, self.output; U64: n; F32: a, b, c },
        )
    }
}
