//! From the order of tokens to that of experts, and back.

use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CombineRows, GatherRows};
use crate::{DType, Result};

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
        queue.launch(
            &load.kernel("gather_rows", dtype),
            grid,
            args! {
                self.input, self.rows, self.output; U32: tokens, width, self.rows.elements() / tokens,
                self.output.shape.rows()
            },
        )
    }
}

impl KernelOperation for CombineRows {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_rows.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tokens, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.output].into_iter().chain(self.also));
        let grid = over_rows(tokens, width / load.values(dtype), queue);
        queue.launch(
            &load.kernel("combine_rows", dtype),
            grid,
            args! {
                self.input, self.rows, self.also, self.output; U32: tokens, width, self.rows.shape.last(),
                self.input.shape.rows()
            },
        )
    }
}
