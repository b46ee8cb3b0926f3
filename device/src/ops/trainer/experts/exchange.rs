//! The rows that ranks with other experts exchange.
//!
//! Experts are numbered over all ranks: rank `r` of a group has the `r`-th of equal parts of them. A rank sends each other
//! one a block of **slots**, as many for every pair of ranks, whatever the loads. A pair's row goes to a slot of the rank
//! that has its expert, in the order of [`ExpertRows`]. So slots that have rows come first in their block. The number of
//! rows is known to the devices alone.

mod host;

use super::ExpertRows;
use crate::cuda::{KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct, over_packs};
use crate::ops::{Accesses, Operation, ensure, ensure_dtype, ensure_elements, ensure_shape, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// Gives each pair a slot of the rank that has its expert.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotsOfPairs {
    /// `(tokens, k)`, i32: the expert of each pair; a number that is one too high if the pair is dropped.
    pub chosen: Tensor,
    /// The order of the pairs by expert, over the experts of all ranks.
    pub order: ExpertRows,
    /// The ranks of the group.
    pub ranks: usize,
    /// The slots of each pair of ranks.
    pub room: usize,
    /// `(tokens, k)`, i32, written: the pair's slot, of `ranks * room`; -1 if it is dropped or its rank has no more room.
    pub slots: Tensor,
    /// `(1)`, f32, written: the pairs whose rank has no more room. `None` if there is room for all.
    pub beyond: Option<Tensor>,
}

impl Operation for SlotsOfPairs {
    const NAME: &'static str = "slots_of_pairs";

    fn check(&self) -> Result<()> {
        let SlotsOfPairs { chosen, order: ExpertRows { offsets, pairs, rows }, ranks, room, slots, beyond } = self;
        let all = [("chosen", chosen), ("offsets", offsets), ("pairs", pairs), ("rows", rows), ("slots", slots)];
        all.iter().try_for_each(|(name, tensor)| ensure_dtype(Self::NAME, name, tensor, DType::I32))?;
        ensure_elements(Self::NAME, "rows", rows, chosen.elements())?;
        ensure_elements(Self::NAME, "slots", slots, chosen.elements())?;
        if let Some(beyond) = beyond {
            ensure_values(Self::NAME, "beyond", beyond, DType::F32, 1)?;
        }
        check_division(Self::NAME, offsets.elements(), *ranks, *room)
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.chosen, self.order.offsets, self.order.rows], [self.slots]).writes(self.beyond)
    }

    tensors! { chosen, order, slots, beyond }
}

/// Fails unless ranks divide the experts with so many offsets, and have room.
fn check_division(op: &'static str, offsets: usize, ranks: usize, room: usize) -> Result<()> {
    let experts = offsets.saturating_sub(1);
    ensure(op, ranks > 0 && experts > 0 && experts.is_multiple_of(ranks), || {
        format!("{experts} experts cannot be divided over {ranks} ranks")
    })?;
    ensure(op, room > 0 && i32::try_from(ranks * room).is_ok(), || format!("{ranks} x {room} slots, needs 1 to 2^31"))
}

/// Finds the expert of each slot that a rank received, among its own.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsOfSlots {
    /// `(ranks, experts + 1)`, i32: the [offsets](ExpertRows::offsets) of all ranks, over the experts of all.
    pub offsets: Tensor,
    /// The number of this rank.
    pub rank: usize,
    /// `(ranks * room, 1)`, i32, written: a number of this rank's experts, from 0; one too high for a slot without a row.
    pub chosen: Tensor,
}

impl ExpertsOfSlots {
    /// The ranks of the group.
    pub fn ranks(&self) -> usize {
        self.offsets.shape.rows()
    }

    /// The experts of this rank.
    pub fn experts(&self) -> usize {
        (self.offsets.shape.last() - 1) / self.ranks().max(1)
    }

    /// The slots of each pair of ranks.
    pub fn room(&self) -> usize {
        self.chosen.elements() / self.ranks().max(1)
    }
}

impl Operation for ExpertsOfSlots {
    const NAME: &'static str = "experts_of_slots";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "offsets", &self.offsets, DType::I32)?;
        ensure_dtype(Self::NAME, "chosen", &self.chosen, DType::I32)?;
        let ranks = self.ranks();
        ensure(Self::NAME, self.rank < ranks, || format!("there is no rank {} of {ranks}", self.rank))?;
        check_division(Self::NAME, self.offsets.shape.last(), ranks, self.room())?;
        ensure_shape(Self::NAME, "chosen", &self.chosen, &[ranks * self.room(), 1])
    }

    tensors! { read offsets; write chosen }
}

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
        let block = fill! {
            SlotsOfPairsArgs: self.{chosen, slots, beyond, ranks, room}; offsets: self.order.offsets,
            rows: self.order.rows, count, experts: self.order.offsets.elements() - 1
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
        let block = fill! {
            ExpertsOfSlotsArgs: self.{offsets, chosen, rank}; ranks: self.ranks(), experts: self.experts(),
            room: self.room()
        };
        queue.launch_block("experts_of_slots", over_packs(self.chosen.elements(), queue), &block)
    }
}
