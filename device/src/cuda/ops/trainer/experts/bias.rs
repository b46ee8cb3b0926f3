//! Biases of experts.

use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::shape::{LoadWidth, THREADS, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{AddExpertBias, ExpertBiasDots, ExpertBiasGradient, RowWeights};
use crate::{Result, Tensor};

const FILES: &[KernelFile] = &[kernel_file!(Experts, "experts/expert_bias.cu")];

kernel_struct! {
    /// `ExpertBias` of `kernels/experts/expert_bias.cu`.
    ExpertBiasArgs {
        u64: rows, bias, offsets, weights, pairs, output;
        u32: all, width, experts, accumulate;
    }
}

impl ExpertBiasArgs {
    fn new(rows: Tensor, bias: u64, offsets: Tensor, weights: Option<RowWeights>, output: u64) -> ExpertBiasArgs {
        ExpertBiasArgs {
            rows: rows.address,
            bias,
            offsets: offsets.address,
            weights: weights.map_or(0, |of| of.weights.address),
            pairs: weights.map_or(0, |of| of.pairs.address),
            output,
            all: rows.shape.rows() as u32,
            width: rows.shape.last() as u32,
            experts: (offsets.elements() - 1) as u32,
            accumulate: 0,
        }
    }
}

impl KernelOperation for AddExpertBias {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let AddExpertBias { rows, bias, offsets, weights } = *self;
        let load = LoadWidth::of(rows.shape.last(), [rows, bias]);
        let grid = over_rows(rows.shape.rows(), rows.shape.last() / load.values(rows.dtype), queue);
        let block = ExpertBiasArgs::new(rows, bias.address, offsets, weights, 0);
        queue.launch_block(&load.kernel("add_expert_bias", rows.dtype), grid, &block)
    }
}

impl KernelOperation for ExpertBiasGradient {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ExpertBiasGradient { rows, offsets, weights, grad, accumulate } = *self;
        let block = ExpertBiasArgs {
            accumulate: accumulate.into(),
            ..ExpertBiasArgs::new(rows, 0, offsets, weights, grad.address)
        };
        let blocks = (block.experts, rows.shape.last().div_ceil(32) as u32, 1);
        let grid = Grid { blocks, threads: THREADS as u32, shared: 0 };
        queue.launch_block(&format!("expert_bias_gradient_{}", rows.dtype), grid, &block)
    }
}

impl KernelOperation for ExpertBiasDots {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ExpertBiasDots { rows, bias, offsets, pairs, grad_weights } = *self;
        let load = LoadWidth::of(rows.shape.last(), [rows, bias]);
        let block = ExpertBiasArgs {
            pairs: pairs.address,
            ..ExpertBiasArgs::new(rows, bias.address, offsets, None, grad_weights.address)
        };
        let blocks = rows.shape.rows().div_ceil(THREADS / 32).min(queue.multiprocessors() * 8);
        queue.launch_block(&load.kernel("expert_bias_dots", rows.dtype), Grid::line(blocks, THREADS as u32), &block)
    }
}
