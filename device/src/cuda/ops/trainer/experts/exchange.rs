//! The rows that ranks with other experts exchange.

use crate::Result;
use crate::cuda::kernels::{KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::shape::over_packs;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{ExpertsOfSlots, SlotsOfPairs};

kernel_struct! {
    /// `SlotsOfPairs` of `kernels/experts/expert_exchange.cu`.
    SlotsOfPairsArgs {
        u64: chosen, offsets, rows, slots, beyond;
        u32: count, experts, ranks, room;
    }
}

impl KernelOperation for SlotsOfPairs {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_exchange.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.chosen.elements();
        let block = SlotsOfPairsArgs {
            chosen: self.chosen.address,
            offsets: self.order.offsets.address,
            rows: self.order.rows.address,
            slots: self.slots.address,
            beyond: self.beyond.map_or(0, |beyond| beyond.address),
            count: count as u32,
            experts: (self.order.offsets.elements() - 1) as u32,
            ranks: self.ranks as u32,
            room: self.room as u32,
        };
        queue.launch_block("slots_of_pairs", over_packs(count, queue), &block)
    }
}

kernel_struct! {
    /// `ExpertsOfSlots` of `kernels/experts/expert_exchange.cu`.
    ExpertsOfSlotsArgs {
        u64: offsets, chosen;
        u32: ranks, rank, experts, room;
    }
}

impl KernelOperation for ExpertsOfSlots {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_exchange.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = ExpertsOfSlotsArgs {
            offsets: self.offsets.address,
            chosen: self.chosen.address,
            ranks: self.ranks() as u32,
            rank: self.rank as u32,
            experts: self.experts() as u32,
            room: self.room() as u32,
        };
        queue.launch_block("experts_of_slots", over_packs(self.chosen.elements(), queue), &block)
    }
}
