//! Normalisation.

use crate::cuda::{Grid, KernelFile, KernelOperation, LoadWidth, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Norm, NormBackward, RowSums};
use crate::{DType, Result, Tensor};

/// How a row is distributed to threads. `rows.cuh` has the suffixes of the kernels' names.
#[derive(Clone, Copy)]
enum RowShape {
    /// One warp per row. Each thread has this many packs in registers.
    Warp(usize),
    /// One block of this many threads per row. Each thread has two packs in registers.
    Block(usize),
    /// One block per row of any size.
    Any,
}

/// Threads of a block with one row per warp.
const WARP_THREADS: usize = 128;

impl RowShape {
    fn of(hidden: usize, dtype: DType, tensors: impl IntoIterator<Item = Tensor>) -> RowShape {
        if LoadWidth::of(hidden, tensors) == LoadWidth::Scalar {
            return RowShape::Any;
        }
        match (hidden / LoadWidth::Vector.values(dtype)).div_ceil(32) {
            packs @ (0..=2 | 4) => RowShape::Warp(packs.max(1)),
            3 if dtype == DType::Bf16 => RowShape::Warp(3),
            3 => RowShape::Warp(4),
            // Two packs per thread. For more than 512 threads there are not enough registers.
            packs @ ..=32 => RowShape::Block(packs.div_ceil(2) * 32),
            _ => RowShape::Any,
        }
    }

    fn kernel(self, name: &str, dtype: DType) -> String {
        match self {
            RowShape::Warp(packs) => format!("{name}_{dtype}_warp{packs}"),
            RowShape::Block(_) => format!("{name}_{dtype}_block"),
            RowShape::Any => format!("{name}_{dtype}_any"),
        }
    }

    fn threads(self) -> usize {
        match self {
            RowShape::Warp(_) => WARP_THREADS,
            RowShape::Block(threads) => threads,
            RowShape::Any => 256,
        }
    }

    /// Rows that a block handles at a time.
    fn rows(self) -> usize {
        if matches!(self, RowShape::Warp(_)) { WARP_THREADS / 32 } else { 1 }
    }
}

kernel_struct! {
    /// `Norm` of `kernels/norms/norm.cu`; 0 is the null pointer.
    NormArgs {
        u64: input, residual, sum, weight, bias, output, mean, rstd;
        u32: rows, hidden;
        f32: eps, weight_offset;
    }
}

impl KernelOperation for Norm {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/norm.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, hidden, dtype) = (self.input.shape.rows(), self.input.shape.last(), self.input.dtype);
        let vectors = [self.input, self.weight]
            .into_iter()
            .chain(self.output)
            .chain(self.residual)
            .chain(self.sum)
            .chain(self.bias);
        let shape = RowShape::of(hidden, dtype, vectors);
        let blocks = rows.div_ceil(shape.rows()).min(queue.multiprocessors() * (2048 / shape.threads()));
        let block = fill! {
            NormArgs: self.{input, residual, sum, weight, bias, output, mean, rstd, eps}; rows, hidden,
            weight_offset: self.kind.weight_offset()
        };
        queue.launch_block(&shape.kernel("norm", dtype), Grid::line(blocks, shape.threads()), &block)
    }
}

kernel_struct! {
    /// `NormBackward` of `kernels/norms/norm_backward.cu`; 0 is the null pointer.
    NormBackwardArgs {
        u64: input, weight, mean, rstd, grad_output, grad_residual, grad_input, weight_parts, bias_parts,
            residual_parts;
        u32: rows, hidden;
        f32: weight_offset;
        u32: reserved;
    }
}

impl RowShape {
    /// Blocks of the backward, each with a part of the sums: as many as have registers at the same time.
    fn backward_blocks(self, rows: usize, sums: RowSums, multiprocessors: usize) -> usize {
        let with_residual = sums == RowSums::ParametersAndResidual;
        let at_once = match self {
            // Registers of a thread on an H200: four packs 168, with the sums 240; three packs with the sums 168; else
            // 128.
            RowShape::Warp(4) => 3 - usize::from(with_residual),
            RowShape::Warp(3) if with_residual => 3,
            RowShape::Block(threads) => 512 / threads,
            _ => 4,
        };
        rows.div_ceil(self.rows()).min(multiprocessors * at_once)
    }
}

/// See [`Device::norm_parts`](crate::Device::norm_parts): as many as there are blocks at a time.
pub(crate) fn norm_parts(input: &Tensor, sums: RowSums, multiprocessors: usize) -> usize {
    let shape = RowShape::of(input.shape.last(), input.dtype, []);
    shape.backward_blocks(input.shape.rows(), sums, multiprocessors).max(1)
}

impl KernelOperation for NormBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("norms/norm_backward.cu")];

    /// Each block leaves a part.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, hidden, dtype) = (self.input.shape.rows(), self.input.shape.last(), self.input.dtype);
        let vectors =
            [self.input, self.weight, self.grad_output, self.grad_input].into_iter().chain(self.grad_residual);
        let shape = RowShape::of(hidden, dtype, vectors);
        let blocks =
            self.parts().unwrap_or_else(|| shape.backward_blocks(rows, RowSums::Parameters, queue.multiprocessors()));
        let block = fill! {
            NormBackwardArgs: self.{input, weight, mean, rstd, grad_output, grad_residual, grad_input, weight_parts,
            bias_parts, residual_parts}; rows, hidden, weight_offset: self.kind.weight_offset(), reserved: 0u32
        };
        if let RowShape::Any = shape {
            // First, since `grad_input` may overwrite `grad_residual`.
            let columns = Grid::plane(hidden.div_ceil(256), blocks, 256);
            queue.launch_block(&format!("norm_backward_columns_{dtype}"), columns, &block)?;
            let grid = Grid::line(rows.min(queue.multiprocessors() * 8), 256);
            return queue.launch_block(&shape.kernel("norm_backward", dtype), grid, &block);
        }
        let name = if self.residual_parts.is_some() { "norm_backward_sums" } else { "norm_backward" };
        queue.launch_block(&shape.kernel(name, dtype), Grid::line(blocks, shape.threads()), &block)
    }
}
