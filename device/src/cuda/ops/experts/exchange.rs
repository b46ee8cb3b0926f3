//! The rows that ranks with other experts exchange.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::ops::shape::over_packs;
use crate::ops::{ExpertsOfSlots, SlotsOfPairs};

/// `SlotsOfPairs` of `kernels/expert_exchange.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct SlotsOfPairsArgs {
    chosen: u64,
    offsets: u64,
    rows: u64,
    slots: u64,
    beyond: u64,
    count: u32,
    experts: u32,
    ranks: u32,
    room: u32,
}

/// See [`SlotsOfPairs`].
pub(in crate::cuda::ops) fn slots_of_pairs(op: &SlotsOfPairs, queue: &Queue<'_>) -> Result<()> {
    let count = op.chosen.elements();
    let block = SlotsOfPairsArgs {
        chosen: op.chosen.address,
        offsets: op.order.offsets.address,
        rows: op.order.rows.address,
        slots: op.slots.address,
        beyond: op.beyond.map_or(0, |beyond| beyond.address),
        count: count as u32,
        experts: (op.order.offsets.elements() - 1) as u32,
        ranks: op.ranks as u32,
        room: op.room as u32,
    };
    queue.launch_block("slots_of_pairs", over_packs(count, queue), &block)
}

/// `ExpertsOfSlots` of `kernels/expert_exchange.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct ExpertsOfSlotsArgs {
    offsets: u64,
    chosen: u64,
    ranks: u32,
    rank: u32,
    experts: u32,
    room: u32,
}

/// See [`ExpertsOfSlots`].
pub(in crate::cuda::ops) fn experts_of_slots(op: &ExpertsOfSlots, queue: &Queue<'_>) -> Result<()> {
    let block = ExpertsOfSlotsArgs {
        offsets: op.offsets.address,
        chosen: op.chosen.address,
        ranks: op.ranks() as u32,
        rank: op.rank as u32,
        experts: op.experts() as u32,
        room: op.room() as u32,
    };
    queue.launch_block("experts_of_slots", over_packs(op.chosen.elements(), queue), &block)
}
