//! Normalisation.

use super::shape::LoadWidth;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{Norm, NormBackward};
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

/// `Norm` of `kernels/norm.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct NormArgs {
    input: u64,
    residual: u64,
    sum: u64,
    weight: u64,
    bias: u64,
    output: u64,
    mean: u64,
    rstd: u64,
    rows: u32,
    hidden: u32,
    eps: f32,
    weight_offset: f32,
}

fn address(tensor: Option<Tensor>) -> u64 {
    tensor.map_or(0, |tensor| tensor.address)
}

/// See [`Norm`].
pub(super) fn norm(op: &Norm, queue: &Queue<'_>) -> Result<()> {
    let (rows, hidden, dtype) = (op.input.shape.rows(), op.input.shape.last(), op.input.dtype);
    let vectors = [op.input, op.weight].into_iter().chain(op.output).chain(op.residual).chain(op.sum).chain(op.bias);
    let shape = RowShape::of(hidden, dtype, vectors);
    let blocks = rows.div_ceil(shape.rows()).min(queue.multiprocessors() * (2048 / shape.threads()));
    let block = NormArgs {
        input: op.input.address,
        residual: address(op.residual),
        sum: address(op.sum),
        weight: op.weight.address,
        bias: address(op.bias),
        output: address(op.output),
        mean: address(op.mean),
        rstd: op.rstd.address,
        rows: rows as u32,
        hidden: hidden as u32,
        eps: op.eps,
        weight_offset: op.kind.weight_offset(),
    };
    queue.launch_block(&shape.kernel("norm", dtype), Grid::line(blocks, shape.threads() as u32), &block)
}

/// `NormBackward` of `kernels/norm_backward.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct NormBackwardArgs {
    input: u64,
    weight: u64,
    mean: u64,
    rstd: u64,
    grad_output: u64,
    grad_residual: u64,
    grad_input: u64,
    weight_parts: u64,
    bias_parts: u64,
    residual_parts: u64,
    rows: u32,
    hidden: u32,
    weight_offset: f32,
    reserved: u32,
}

impl RowShape {
    /// Blocks of the backward, each with a part of the sums: as many as have registers at the same time.
    fn backward_blocks(self, rows: usize, sums: bool, multiprocessors: usize) -> usize {
        let at_once = match self {
            // Registers of a thread on an H200: four packs 168, with the sums 240; three packs with the sums 168; else
            // 128.
            RowShape::Warp(4) => 3 - usize::from(sums),
            RowShape::Warp(3) if sums => 3,
            RowShape::Block(threads) => 512 / threads,
            _ => 4,
        };
        rows.div_ceil(self.rows()).min(multiprocessors * at_once)
    }
}

/// See [`Device::norm_parts`](crate::Device::norm_parts): as many as there are blocks at a time.
pub(crate) fn norm_parts(input: &Tensor, with_residual: bool, multiprocessors: usize) -> usize {
    let shape = RowShape::of(input.shape.last(), input.dtype, []);
    shape.backward_blocks(input.shape.rows(), with_residual, multiprocessors).max(1)
}

/// See [`NormBackward`]. Each block leaves a part.
pub(super) fn norm_backward(op: &NormBackward, queue: &Queue<'_>) -> Result<()> {
    let (rows, hidden, dtype) = (op.input.shape.rows(), op.input.shape.last(), op.input.dtype);
    let vectors = [op.input, op.weight, op.grad_output, op.grad_input].into_iter().chain(op.grad_residual);
    let shape = RowShape::of(hidden, dtype, vectors);
    let blocks = op.parts().unwrap_or_else(|| shape.backward_blocks(rows, false, queue.multiprocessors()));
    let block = NormBackwardArgs {
        input: op.input.address,
        weight: op.weight.address,
        mean: address(op.mean),
        rstd: op.rstd.address,
        grad_output: op.grad_output.address,
        grad_residual: address(op.grad_residual),
        grad_input: op.grad_input.address,
        weight_parts: address(op.weight_parts),
        bias_parts: address(op.bias_parts),
        residual_parts: address(op.residual_parts),
        rows: rows as u32,
        hidden: hidden as u32,
        weight_offset: op.kind.weight_offset(),
        reserved: 0,
    };
    if let RowShape::Any = shape {
        // First, since `grad_input` may overwrite `grad_residual`.
        let columns = Grid { blocks: (hidden.div_ceil(256) as u32, blocks as u32, 1), threads: 256, shared: 0 };
        queue.launch_block(&format!("norm_backward_columns_{dtype}"), columns, &block)?;
        let grid = Grid::line(rows.min(queue.multiprocessors() * 8), 256);
        return queue.launch_block(&shape.kernel("norm_backward", dtype), grid, &block);
    }
    let name = if op.residual_parts.is_some() { "norm_backward_sums" } else { "norm_backward" };
    queue.launch_block(&shape.kernel(name, dtype), Grid::line(blocks, shape.threads() as u32), &block)
}
