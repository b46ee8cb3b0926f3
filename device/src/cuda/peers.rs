//! Memory through which the GPUs of one node reach each other, for the kernels of `kernels/peers.cu`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::driver::{DeviceBlock, MappedBlock, PeerHandle, RawStream, handle_of, zero};
use crate::communicator::CollectiveKind;
use crate::ops::Collective;
use crate::{DType, Error, Result, Tensor};

/// Bytes for all readers in a slot of a block.
const SLOT_BYTES: u64 = 128 << 10;
/// Most blocks of a kernel. As in `kernels/peers.cu`.
pub(super) const MAX_BLOCKS: usize = 64;
/// Most ranks that share windows: the GPUs of a node. As in `kernels/peers.cu`.
pub(super) const MAX_RANKS: usize = 8;
/// Slots of a block. As in `kernels/peers.cu`.
const SLOTS: u64 = 4;
/// Bytes of the flags of a lane. As in `kernels/peers.cu`.
const FLAG_BYTES: u64 = (MAX_BLOCKS * MAX_RANKS * 16) as u64;
/// Streams that can have a transfer under way at the same time. A rank transfers on its compute and its side stream.
const LANES: usize = 3;

/// Memory of this rank's GPU that the kernels of the group's other ranks read and write.
pub struct PeerWindow {
    /// Of all lanes, one after the other.
    memory: DeviceBlock,
    /// Of each lane and block, the number of rounds so far, as `u32`.
    rounds: DeviceBlock,
    ranks: usize,
}

impl PeerWindow {
    /// Memory for a group of so many ranks, on the GPU that is open on this thread.
    ///
    /// # Errors
    /// Too many ranks; no memory; the driver's.
    pub fn new(ranks: usize) -> Result<PeerWindow> {
        let refuse = |problem: String| Error::Driver { call: "peer memory", problem };
        if ranks > MAX_RANKS {
            return Err(refuse(format!("{ranks} ranks, at most {MAX_RANKS} share it")));
        }
        let allocate = |bytes: usize| -> Result<DeviceBlock> {
            let block = DeviceBlock::new(bytes)?.ok_or_else(|| refuse(format!("no {bytes} bytes are free")))?;
            zero(block.address(), bytes)?;
            Ok(block)
        };
        let lanes = LANES as u64;
        Ok(PeerWindow {
            memory: allocate((lanes * lane_bytes(ranks)) as usize)?,
            rounds: allocate(LANES * MAX_BLOCKS * size_of::<u32>())?,
            ranks,
        })
    }

    /// What the other ranks map it by.
    ///
    /// # Errors
    /// The driver's: some containers and virtual GPUs do not allow it.
    pub fn handle(&self) -> Result<PeerHandle> {
        handle_of(self.memory.address())
    }

    /// Maps the windows of all ranks, by rank; `handles[rank]` is this rank's.
    ///
    /// # Errors
    /// The driver's: the GPUs cannot reach each other, or this process may not see the others.
    pub fn connect(self: Rc<Self>, rank: usize, handles: &[PeerHandle]) -> Result<Peers> {
        let map = |(other, handle): (usize, &PeerHandle)| match other == rank {
            true => Ok(None),
            false => MappedBlock::open(*handle).map(Some),
        };
        let mapped = handles.iter().enumerate().map(map).collect::<Result<_>>()?;
        Ok(Peers { rank, mapped, own: self, lanes: RefCell::default() })
    }
}

/// Whether the kernels can make a transfer from the first tensor to the second, on this rank. Only types, sizes and overlap decide, so
/// all ranks decide alike.
fn can_make(kind: CollectiveKind, (input, output): (&Tensor, &Tensor), rank: usize, ranks: usize) -> bool {
    let bytes = input.bytes() as u64;
    let apart = !overlap(input, output);
    // A block writes its pieces of the output while others still show theirs of the input.
    let (shown, clear) = match kind {
        CollectiveKind::AllReduceSum => (bytes, apart || input.address == output.address),
        CollectiveKind::AllGather => (bytes, apart || input.address == output.address + rank as u64 * bytes),
        CollectiveKind::ReduceScatterSum => (bytes / ranks as u64, apart),
        CollectiveKind::AllReduceMax | CollectiveKind::Send { .. } | CollectiveKind::Receive { .. } => return false,
    };
    let can_add = kind.only_moves() || matches!(input.dtype, DType::F32 | DType::Bf16);
    let in_words = |number: u64| number.is_multiple_of(16);
    can_add && clear && shown > 0 && in_words(shown) && in_words(input.address) && in_words(output.address)
}

fn overlap(a: &Tensor, b: &Tensor) -> bool {
    a.address < b.address + b.bytes() as u64 && b.address < a.address + a.bytes() as u64
}

fn lane_bytes(ranks: usize) -> u64 {
    FLAG_BYTES + SLOTS * (MAX_BLOCKS * (ranks - 1)) as u64 * room(ranks)
}

/// Bytes for one reader in a slot.
fn room(ranks: usize) -> u64 {
    SLOT_BYTES / ranks.next_power_of_two() as u64
}

/// The windows of a group of ranks, as one of them sees them.
///
/// The kernels on one stream are in order, and the transfers of all ranks match by that order. Streams are independent of
/// each other: each has a lane, a part of every window. All ranks use their streams for the first time in the same order,
/// so a stream has the same lane on all of them.
pub struct Peers {
    rank: usize,
    /// By rank; `None` is this one.
    mapped: Vec<Option<MappedBlock>>,
    own: Rc<PeerWindow>,
    /// The streams that have the lanes. A lane whose stream is gone is free.
    lanes: RefCell<Vec<Weak<()>>>,
}

impl Peers {
    /// Whether the kernels make a transfer.
    pub(super) fn takes(&self, op: &Collective) -> bool {
        can_make(op.kind, (&op.input, &op.output), self.rank, self.ranks())
    }

    /// The lane of a stream. `None` if other streams have all of them.
    pub(super) fn lane(&self, stream: &RawStream) -> Option<usize> {
        let mut lanes = self.lanes.borrow_mut();
        let alive = stream.alive();
        if let Some(lane) = lanes.iter().position(|lane| std::ptr::eq(lane.as_ptr(), Arc::as_ptr(alive))) {
            return Some(lane);
        }
        let free = lanes.iter().position(|lane| lane.strong_count() == 0);
        let lane = free.unwrap_or(lanes.len());
        match lanes.get_mut(lane) {
            Some(of_a_stream_that_is_gone) => *of_a_stream_that_is_gone = Arc::downgrade(alive),
            None if lane < LANES => lanes.push(Arc::downgrade(alive)),
            None => return None,
        }
        Some(lane)
    }

    /// The addresses of a lane: of the numbers of rounds, and of its part of all windows, by rank.
    pub(super) fn memory(&self, lane: usize) -> (u64, [u64; MAX_RANKS]) {
        let mut windows = [0; MAX_RANKS];
        for (window, mapped) in windows.iter_mut().zip(&self.mapped) {
            let start = mapped.as_ref().map_or(self.own.memory.address(), MappedBlock::address);
            *window = start + lane as u64 * lane_bytes(self.ranks());
        }
        (self.own.rounds.address() + (lane * MAX_BLOCKS * size_of::<u32>()) as u64, windows)
    }

    /// Bytes for one reader in a slot of a block.
    pub(super) fn room(&self) -> u64 {
        room(self.ranks())
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn ranks(&self) -> usize {
        self.own.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::CollectiveKind::{AllGather, AllReduceMax, AllReduceSum, ReduceScatterSum};
    use super::*;
    use crate::Device;

    #[test]
    fn whole_words_that_no_block_overwrites_go_by_the_kernels() {
        let device = Device::host(crate::HostOptions { threads: 1, check: false, dry: true }).unwrap();
        let tensor = |elements: usize, dtype| device.virtual_tensor("t", [elements], dtype);
        let all = tensor(64, DType::Bf16);
        let part = |start: usize, elements: usize| all.view(start, [elements]);
        let other = tensor(64, DType::Bf16);
        let takes = |kind, input: Tensor, output: Tensor| can_make(kind, (&input, &output), 1, 2);
        assert!(takes(AllReduceSum, all, all) && takes(AllReduceSum, all, other));
        assert!(takes(AllGather, part(32, 32), all) && takes(AllGather, part(0, 32), other));
        assert!(takes(ReduceScatterSum, all, other.view(0, [32])));
        // Ranks still read what these overwrite.
        assert!(!takes(AllGather, part(0, 32), all) && !takes(ReduceScatterSum, all, part(32, 32)));
        assert!(!takes(AllReduceSum, part(0, 32), part(8, 32)));
        // Not whole words, sums of other types, other kinds, and nothing.
        assert!(!takes(AllReduceSum, part(0, 4), part(0, 4)) && !takes(AllReduceSum, part(4, 8), part(4, 8)));
        let eight_bit = tensor(64, DType::F8E4M3);
        assert!(!takes(AllReduceSum, eight_bit, eight_bit) && takes(AllGather, eight_bit, tensor(128, DType::F8E4M3)));
        assert!(!takes(AllReduceMax, all, all) && !takes(AllReduceSum, part(0, 0), part(0, 0)));
    }
}
