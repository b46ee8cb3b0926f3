//! Gated linear units of rows, times the router's weights.

use crate::Result;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::shape::{LoadWidth, over_rows};
use crate::cuda::ops::trainer::products::{glu_backward_name, glu_name};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{ExpertGlu, ExpertGluBackward};

kernel_struct! {
    /// `ExpertGlu` of `kernels/experts/expert_glu.cu`.
    ExpertGluArgs {
        u64: input, weights, pairs, output;
        u32: rows, width;
    }
}

kernel_struct! {
    /// `ExpertGluBackward` of `kernels/experts/expert_glu.cu`.
    ExpertGluBackwardArgs {
        u64: input, weights, pairs, grad_output, grad_input, output, grad_weights;
        u32: rows, width;
    }
}

impl KernelOperation for ExpertGlu {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_glu.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.output]);
        let block = ExpertGluArgs {
            input: self.input.address,
            weights: self.weights.address,
            pairs: self.pairs.address,
            output: self.output.address,
            rows: rows as u32,
            width: width as u32,
        };
        let name = format!("expert_{}", glu_name(self.gate));
        queue.launch_block(&load.kernel(&name, dtype), over_rows(rows, width / load.values(dtype), queue), &block)
    }
}

/// Packs of a row that a warp takes at most; a longer row goes to a block.
const WARP_PACKS: usize = 64;

/// Threads of a block with one row per warp.
const WARP_THREADS: usize = 128;

impl KernelOperation for ExpertGluBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_glu.cu")];

    /// One pass over each row also sums up its weight's gradient.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.grad_output, self.grad_input, self.output]);
        let packs = width / load.values(dtype);
        let (form, blocks, threads) = match packs <= WARP_PACKS {
            true => ("warp", rows.div_ceil(WARP_THREADS / 32), WARP_THREADS),
            false => ("block", rows, packs.next_multiple_of(32).min(256)),
        };
        let block = ExpertGluBackwardArgs {
            input: self.input.address,
            weights: self.weights.address,
            pairs: self.pairs.address,
            grad_output: self.grad_output.address,
            grad_input: self.grad_input.address,
            output: self.output.address,
            grad_weights: self.grad_weights.address,
            rows: rows as u32,
            width: width as u32,
        };
        let name = format!("expert_{}_{form}", glu_backward_name(self.gate));
        let grid = Grid::line(blocks.min(queue.multiprocessors() * 4096 / threads), threads as u32);
        queue.launch_block(&load.kernel(&name, dtype), grid, &block)
    }
}
