//! The load of experts.

use super::{PlacesArgs, at_most};
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{CountLoad, UpdateSelectionBias};
use crate::{DType, Operation, Result};

/// Pairs that a block counts; `PART` in `kernels/experts/expert_load.cu`.
const PART: usize = 4096;

const THREADS: u32 = 256;

kernel_struct! {
    /// `CountLoad` of `kernels/experts/expert_load.cu`.
    CountLoadArgs {
        u64: chosen, load, counts, real, position_ids;
        u32: pairs, experts, parts, accumulate, k;
        PlacesArgs: places;
    }
}

/// Pairs of a group, and their parts.
fn sizes(op: &CountLoad) -> (usize, usize) {
    let pairs = op.chosen.elements() / op.load.shape.rows();
    (pairs, pairs.div_ceil(PART).max(1))
}

impl KernelOperation for CountLoad {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_load.cu")];

    /// Whole numbers are counted, so no order matters.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (groups, experts) = (self.load.shape.rows(), self.load.shape.last());
        let (pairs, parts) = sizes(self);
        let block = CountLoadArgs {
            chosen: self.chosen.address,
            load: self.load.address,
            counts: queue.scratch,
            real: self.real.map_or(0, |real| real.address),
            position_ids: self.position_ids.map_or(0, |ids| ids.address),
            pairs: pairs as u32,
            experts: experts as u32,
            parts: parts as u32,
            accumulate: self.accumulate.into(),
            k: self.chosen.shape.last() as u32,
            places: PlacesArgs::new(self.tokens, self.chosen.shape.rows()),
        };
        if self.position_ids.is_some() {
            return queue.launch_block("count_load_of_documents", Grid::line(groups, THREADS), &block);
        }
        let grid = Grid { blocks: (groups as u32, parts as u32, 1), threads: THREADS, shared: 0 };
        queue.launch_block("count_load", grid, &block)?;
        if parts == 1 { Ok(()) } else { queue.launch_block("add_loads", Grid::line(groups, THREADS), &block) }
    }

    /// The counts of each part, if there are several.
    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        let (_, parts) = sizes(self);
        if parts > 1 { self.load.elements() * parts * DType::I32.size() } else { 0 }
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        // A column may be for dropped pairs.
        at_most(Self::NAME, self.load.shape.last().saturating_sub(1), 1)
    }
}

kernel_struct! {
    /// `UpdateSelectionBias` of `kernels/experts/expert_load.cu`.
    UpdateSelectionBiasArgs {
        u64: load, bias, status;
        u32: experts;
        f32: rate;
    }
}

impl KernelOperation for UpdateSelectionBias {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_load.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = UpdateSelectionBiasArgs {
            load: self.load.address,
            bias: self.bias.address,
            status: self.status.address,
            experts: self.load.shape.last() as u32,
            rate: self.rate,
        };
        queue.launch_block("update_selection_bias", Grid::line(self.load.shape.rows(), THREADS), &block)
    }
}
