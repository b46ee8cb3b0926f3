//! The load of experts.

use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::{CountLoad, UpdateSelectionBias};
use crate::{DType, Result};

/// Pairs that a block counts; `PART` in `kernels/expert_load.cu`.
const PART: usize = 4096;

const THREADS: u32 = 256;

/// `CountLoad` of `kernels/expert_load.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct CountLoadArgs {
    chosen: u64,
    load: u64,
    counts: u64,
    real: u64,
    position_ids: u64,
    pairs: u32,
    experts: u32,
    parts: u32,
    accumulate: u32,
    length: u32,
    k: u32,
}

/// Pairs of a group, and their parts.
fn sizes(op: &CountLoad) -> (usize, usize) {
    let pairs = op.chosen.elements() / op.load.shape.rows();
    (pairs, pairs.div_ceil(PART).max(1))
}

/// Scratch of [`count_load`]: the counts of each part, if there are several.
pub(in crate::cuda::ops) fn count_load_scratch(op: &CountLoad) -> usize {
    let (_, parts) = sizes(op);
    if parts > 1 { op.load.elements() * parts * DType::I32.size() } else { 0 }
}

/// See [`CountLoad`]. Whole numbers are counted, so no order matters.
pub(in crate::cuda::ops) fn count_load(op: &CountLoad, queue: &Queue<'_>) -> Result<()> {
    let (groups, experts) = (op.load.shape.rows(), op.load.shape.last());
    let (pairs, parts) = sizes(op);
    let block = CountLoadArgs {
        chosen: op.chosen.address,
        load: op.load.address,
        counts: queue.scratch,
        real: op.real.map_or(0, |real| real.address),
        position_ids: op.position_ids.map_or(0, |ids| ids.address),
        pairs: pairs as u32,
        experts: experts as u32,
        parts: parts as u32,
        accumulate: op.accumulate.into(),
        length: (op.chosen.elements() / op.real.map_or(1, |real| real.elements())) as u32,
        k: op.chosen.shape.last() as u32,
    };
    if op.position_ids.is_some() {
        return queue.launch_block("count_load_of_documents", Grid::line(groups, THREADS), &block);
    }
    let grid = Grid { blocks: (groups as u32, parts as u32, 1), threads: THREADS, shared: 0 };
    queue.launch_block("count_load", grid, &block)?;
    if parts == 1 { Ok(()) } else { queue.launch_block("add_loads", Grid::line(groups, THREADS), &block) }
}

/// `UpdateSelectionBias` of `kernels/expert_load.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct UpdateSelectionBiasArgs {
    load: u64,
    bias: u64,
    status: u64,
    experts: u32,
    rate: f32,
}

/// See [`UpdateSelectionBias`].
pub(in crate::cuda::ops) fn update_selection_bias(op: &UpdateSelectionBias, queue: &Queue<'_>) -> Result<()> {
    let block = UpdateSelectionBiasArgs {
        load: op.load.address,
        bias: op.bias.address,
        status: op.status.address,
        experts: op.load.shape.last() as u32,
        rate: op.rate,
    };
    queue.launch_block("update_selection_bias", Grid::line(op.load.shape.rows(), THREADS), &block)
}
