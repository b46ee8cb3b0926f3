//! A bound of the load of experts.

use super::at_most;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::LimitLoad;
use crate::{Operation, Result};

/// Threads of a block; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const THREADS: u32 = 256;

kernel_struct! {
    /// `LimitLoad` of `kernels/experts/expert_limit.cu`; 0 is the null pointer.
    LimitLoadArgs {
        u64: chosen, weights, real, kept;
        u32: count, experts, capacity, length, k, reserved;
    }
}

impl KernelOperation for LimitLoad {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_limit.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.chosen.elements();
        let block = LimitLoadArgs {
            chosen: self.chosen.address,
            weights: self.weights.map_or(0, |weights| weights.address),
            real: self.real.map_or(0, |real| real.address),
            kept: self.kept.address,
            count: count as u32,
            experts: self.experts as u32,
            // No expert has more pairs than there are.
            capacity: self.capacity.min(count) as u32,
            length: (count / self.real.map_or(1, |real| real.elements())) as u32,
            k: self.chosen.shape.last() as u32,
            reserved: 0,
        };
        queue.launch_block("limit_load", Grid::line(self.experts, THREADS), &block)
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        at_most(Self::NAME, self.experts, 1)
    }
}
