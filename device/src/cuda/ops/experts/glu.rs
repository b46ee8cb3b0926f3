//! Gated linear units of rows, times the router's weights.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::cuda::ops::activation::{glu_backward_name, glu_name};
use crate::cuda::ops::shape::{LoadWidth, over_rows};
use crate::ops::{ExpertGlu, ExpertGluBackward};

/// `ExpertGlu` of `kernels/expert_glu.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ExpertGluArgs {
    input: u64,
    weights: u64,
    pairs: u64,
    output: u64,
    rows: u32,
    width: u32,
}

/// `ExpertGluBackward` of `kernels/expert_glu.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ExpertGluBackwardArgs {
    input: u64,
    weights: u64,
    pairs: u64,
    grad_output: u64,
    grad_input: u64,
    output: u64,
    grad_weights: u64,
    rows: u32,
    width: u32,
}

/// See [`ExpertGlu`].
pub(in crate::cuda::ops) fn expert_glu(op: &ExpertGlu, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.output.shape.rows(), op.output.shape.last(), op.output.dtype);
    let load = LoadWidth::of(width, [op.input, op.output]);
    let block = ExpertGluArgs {
        input: op.input.address,
        weights: op.weights.address,
        pairs: op.pairs.address,
        output: op.output.address,
        rows: rows as u32,
        width: width as u32,
    };
    let name = format!("expert_{}", glu_name(op.gate));
    queue.launch_block(&load.kernel(&name, dtype), over_rows(rows, width / load.values(dtype), queue), &block)
}

/// Packs of a row that a warp takes at most; a longer row goes to a block.
const WARP_PACKS: usize = 64;

/// Threads of a block with one row per warp.
const WARP_THREADS: usize = 128;

/// See [`ExpertGluBackward`]. One pass over each row also sums up its weight's gradient.
pub(in crate::cuda::ops) fn expert_glu_backward(op: &ExpertGluBackward, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.output.shape.rows(), op.output.shape.last(), op.output.dtype);
    let load = LoadWidth::of(width, [op.input, op.grad_output, op.grad_input, op.output]);
    let packs = width / load.values(dtype);
    let (form, blocks, threads) = match packs <= WARP_PACKS {
        true => ("warp", rows.div_ceil(WARP_THREADS / 32), WARP_THREADS),
        false => ("block", rows, packs.next_multiple_of(32).min(256)),
    };
    let block = ExpertGluBackwardArgs {
        input: op.input.address,
        weights: op.weights.address,
        pairs: op.pairs.address,
        grad_output: op.grad_output.address,
        grad_input: op.grad_input.address,
        output: op.output.address,
        grad_weights: op.grad_weights.address,
        rows: rows as u32,
        width: width as u32,
    };
    let name = format!("expert_{}_{form}", glu_backward_name(op.gate));
    let grid = Grid::line(blocks.min(queue.multiprocessors() * 4096 / threads), threads as u32);
    queue.launch_block(&load.kernel(&name, dtype), grid, &block)
}
