//! The order of pairs by expert.

mod host;

use super::kernels::at_most;
use crate::cuda::{GpuProperties, Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{ExpertRows, Operation, ensure, ensure_dtype, ensure_elements, tensors};
use crate::{DType, Result, Tensor};

/// Sorts pairs by expert. Pairs with an expert of another rank are dropped here.
#[derive(Clone, Debug, PartialEq)]
pub struct SortByExpert {
    /// `(tokens, k)`, i32: the expert of each pair; a number that is one too high if the pair is dropped.
    pub chosen: Tensor,
    /// The number of this rank's first expert.
    pub first: usize,
    /// Written.
    pub order: ExpertRows,
}

impl Operation for SortByExpert {
    const NAME: &'static str = "sort_by_expert";

    fn check(&self) -> Result<()> {
        let ExpertRows { offsets, pairs, rows } = &self.order;
        let all = [("chosen", &self.chosen), ("offsets", offsets), ("pairs", pairs), ("rows", rows)];
        all.iter().try_for_each(|(name, tensor)| ensure_dtype(Self::NAME, name, tensor, DType::I32))?;
        ensure_elements(Self::NAME, "pairs", pairs, self.chosen.elements())?;
        ensure_elements(Self::NAME, "rows", rows, self.chosen.elements())?;
        ensure(Self::NAME, offsets.elements() >= 2, || "there is no expert".into())
    }

    tensors! { read chosen; write order }
}

/// Pairs that a block sorts; `TILE` in `kernels/experts/expert_sort.cu`.
const TILE: usize = 2048;

/// Threads of a block; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const THREADS: usize = 256;

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
        let block = fill! {
            SortArgs: self.{chosen, first}; offsets: self.order.offsets, pairs: self.order.pairs,
            rows: self.order.rows, counts: queue.scratch,
            totals: queue.scratch + ((experts + 1) * tiles * DType::I32.size()) as u64, count: self.chosen.elements(),
            experts, tiles
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
