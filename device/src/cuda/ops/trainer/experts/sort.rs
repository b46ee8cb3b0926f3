//! The order of pairs by expert.

use super::at_most;
use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::SortByExpert;
use crate::{DType, Operation, Result};

/// Pairs that a block sorts; `TILE` in `kernels/experts/expert_sort.cu`.
const TILE: usize = 2048;

/// Threads of a block; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const THREADS: u32 = 256;

kernel_struct! {
    /// `SortByExpert` of `kernels/experts/expert_sort.cu`.
    SortArgs {
        u64: chosen, offsets, pairs, rows, counts, totals;
        u32: count, experts, tiles, first;
    }
}

/// Experts, and tiles of pairs: at least one, which writes the offsets.
fn sizes(op: &SortByExpert) -> (usize, usize) {
    (op.order.offsets.elements() - 1, op.chosen.elements().div_ceil(TILE).max(1))
}

impl KernelOperation for SortByExpert {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_sort.cu")];

    /// Counts by tile, sums of the counts, then every pair goes to its row.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (experts, tiles) = sizes(self);
        let block = SortArgs {
            chosen: self.chosen.address,
            offsets: self.order.offsets.address,
            pairs: self.order.pairs.address,
            rows: self.order.rows.address,
            counts: queue.scratch,
            totals: queue.scratch + ((experts + 1) * tiles * DType::I32.size()) as u64,
            count: self.chosen.elements() as u32,
            experts: experts as u32,
            tiles: tiles as u32,
            first: self.first as u32,
        };
        queue.launch_block("expert_count", Grid::line(tiles, THREADS), &block)?;
        queue.launch_block("expert_scan", Grid::line(experts + 1, THREADS), &block)?;
        queue.launch_block("expert_move", Grid::line(tiles, THREADS), &block)
    }

    /// Counts of every tile, then their totals, of each expert and of dropped pairs.
    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        let (experts, tiles) = sizes(self);
        (experts + 1) * (tiles + 1) * DType::I32.size()
    }

    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        at_most(Self::NAME, self.order.offsets.elements() - 1, 1)
    }
}
