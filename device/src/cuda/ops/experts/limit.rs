//! A bound of the load of experts.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Grid;
use crate::ops::LimitLoad;

/// Threads of a block; `SCAN_THREADS` in `kernels/scan.cuh`.
const THREADS: u32 = 256;

/// `LimitLoad` of `kernels/expert_limit.cu`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct LimitLoadArgs {
    chosen: u64,
    weights: u64,
    real: u64,
    kept: u64,
    count: u32,
    experts: u32,
    capacity: u32,
    length: u32,
    k: u32,
    reserved: u32,
}

/// See [`LimitLoad`].
pub(in crate::cuda::ops) fn limit_load(op: &LimitLoad, queue: &Queue<'_>) -> Result<()> {
    let count = op.chosen.elements();
    let block = LimitLoadArgs {
        chosen: op.chosen.address,
        weights: op.weights.map_or(0, |weights| weights.address),
        real: op.real.map_or(0, |real| real.address),
        kept: op.kept.address,
        count: count as u32,
        experts: op.experts as u32,
        // No expert has more pairs than there are.
        capacity: op.capacity.min(count) as u32,
        length: (count / op.real.map_or(1, |real| real.elements())) as u32,
        k: op.chosen.shape.last() as u32,
        reserved: 0,
    };
    queue.launch_block("limit_load", Grid::line(op.experts, THREADS), &block)
}
