//! Memory shared by the GPUs of one node, for the kernels of `kernels/transfers`.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::{Rc, Weak};

use super::driver::{DeviceMemory, MappedMemory, PeerHandle, RawStream, StreamOwner, copy_to_device, handle_of, zero};
use crate::{Error, Result};

/// The kernels. Nothing may start early after them: see `rewrite/early_starts.rs`.
pub(super) const KERNELS: [&str; 7] = [
    SUM_BF16,
    SUM_F32,
    GATHER,
    "peer_rows_to_experts_by_16",
    "peer_rows_to_experts_by_4",
    "peer_rows_to_tokens_by_16",
    "peer_rows_to_tokens_by_4",
];
pub(super) const SUM_BF16: &str = "peer_sum_bf16";
pub(super) const SUM_F32: &str = "peer_sum_f32";
pub(super) const GATHER: &str = "peer_gather";
/// Bytes for all readers in a slot of a block.
const SLOT_BYTES: u64 = 128 << 10;
/// Most blocks of a kernel. As in `kernels/headers/peers.cuh`.
pub(super) const MAX_BLOCKS: usize = 64;
/// Most ranks that share windows: the GPUs of a node. As in `kernels/headers/peers.cuh`.
pub(super) const MAX_RANKS: usize = 8;
/// Slots of a block. As in `kernels/headers/peers.cuh`.
const SLOTS: u64 = 4;
/// Bytes of the flags of a channel. As in `kernels/headers/peers.cuh`.
const FLAG_BYTES: u64 = (MAX_BLOCKS * MAX_RANKS * 16) as u64;
/// Streams that can have a transfer under way at the same time. A rank transfers on its compute and its side stream, and a
/// third channel is spare. A fourth stream's transfers are NCCL's, on all ranks. A stream that nobody holds any more leaves its
/// channel to the stream that follows it.
const CHANNELS: usize = 3;
/// Most areas of a rank that the group's other ranks reach at the same time.
const MAX_AREAS: usize = 256;
/// Bits of an offset in a place in areas. As in `kernels/transfers/peer_rows.cu`.
const OFFSET_BITS: u32 = 48;

/// Memory of this rank's GPU that the kernels of the group's other ranks read. They write flags in it.
pub struct PeerWindow {
    /// Of all channels, one after the other.
    memory: DeviceMemory,
    /// Of each channel and block, the number of rounds so far, as `u32`.
    rounds: DeviceMemory,
    /// `(MAX_AREAS, MAX_RANKS)`, u64: where the areas of all ranks begin in this process.
    areas: DeviceMemory,
    ranks: usize,
}

impl PeerWindow {
    /// Most ranks that share windows.
    pub const MAX_RANKS: usize = MAX_RANKS;

    /// Memory for a group of so many ranks, on the GPU that is open on this thread.
    ///
    /// # Errors
    /// Too many ranks; no memory; the driver's.
    pub fn new(ranks: usize) -> Result<PeerWindow> {
        let refuse = |problem: String| Error::Driver { call: "peer memory", problem };
        if ranks > MAX_RANKS {
            return Err(refuse(format!("{ranks} ranks, at most {MAX_RANKS} share it")));
        }
        let allocate = |bytes: usize| -> Result<DeviceMemory> {
            let block = DeviceMemory::new(bytes)?.ok_or_else(|| refuse(format!("no {bytes} bytes are free")))?;
            zero(block.address(), bytes)?;
            Ok(block)
        };
        Ok(PeerWindow {
            memory: allocate(PeerWindow::bytes(ranks))?,
            rounds: allocate(CHANNELS * MAX_BLOCKS * size_of::<u32>())?,
            areas: allocate(MAX_AREAS * MAX_RANKS * size_of::<u64>())?,
            ranks,
        })
    }

    /// Bytes of the memory of a window for a group of so many ranks, at least 2.
    pub fn bytes(ranks: usize) -> usize {
        CHANNELS * channel_bytes(ranks) as usize
    }

    /// The handle by which other ranks map the window.
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
        let mapped = map_others(rank, handles)?;
        Ok(Peers { rank, mapped, own: self, channels: RefCell::default(), reached: RefCell::default() })
    }
}

/// Maps the memory of the other ranks, by rank.
fn map_others(rank: usize, handles: &[PeerHandle]) -> Result<Vec<Option<MappedMemory>>> {
    let map = |(other, handle): (usize, &PeerHandle)| match other == rank {
        true => Ok(None),
        false => MappedMemory::open(*handle).map(Some),
    };
    handles.iter().enumerate().map(map).collect()
}

fn channel_bytes(ranks: usize) -> u64 {
    FLAG_BYTES + SLOTS * (MAX_BLOCKS * (ranks - 1)) as u64 * room(ranks)
}

/// Bytes for one reader in a slot.
fn room(ranks: usize) -> u64 {
    SLOT_BYTES / ranks.next_power_of_two() as u64
}

/// `Peers` of `kernels/headers/peers.cuh`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct PeersArgs {
    rounds: u64,
    windows: [u64; MAX_RANKS],
    ranks: u32,
    rank: u32,
    piece: u32,
    room: u32,
}

/// The windows of a group of ranks, as one of them sees them.
///
/// The kernels on one stream are in order, and the transfers of all ranks match by that order. Streams are independent of
/// each other: each has a channel, a part of every window. All ranks use their streams for the first time in the same order,
/// so a stream has the same channel on all of them.
pub struct Peers {
    rank: usize,
    /// The mapped windows, by rank; `None` is this rank's.
    mapped: Vec<Option<MappedMemory>>,
    own: Rc<PeerWindow>,
    /// The streams that have the channels. A channel is free if its stream is gone.
    channels: RefCell<Vec<Weak<StreamOwner>>>,
    /// The areas that all ranks reach, by their number in `PeerWindow::areas`; `None` is free.
    reached: RefCell<Vec<Option<ReachedArea>>>,
}

/// An area of this rank, and those of the others that belong to it.
struct ReachedArea {
    /// The addresses of this rank's area.
    own: Range<u64>,
    /// Areas of the other ranks, by rank; `None` for this rank.
    _mapped: Vec<Option<MappedMemory>>,
}

impl Drop for Peers {
    /// Waits for the kernels that read the other windows. A failure has no cure here.
    fn drop(&mut self) {
        let streams = self.channels.get_mut().iter().filter_map(Weak::upgrade);
        streams.for_each(|stream| _ = stream.synchronize());
    }
}

impl Peers {
    /// The channel of a stream. `None` if other streams have all of them. Work on a stream that is gone is done, and no graph that was
    /// captured on it is launched again.
    pub(super) fn channel(&self, stream: &RawStream) -> Option<usize> {
        let mut channels = self.channels.borrow_mut();
        let owner = stream.owner();
        if let Some(channel) = channels.iter().position(|channel| std::ptr::eq(channel.as_ptr(), Rc::as_ptr(owner))) {
            return Some(channel);
        }
        let free = channels.iter().position(|channel| channel.strong_count() == 0);
        let channel = free.unwrap_or(channels.len());
        match channels.get_mut(channel) {
            Some(of_a_stream_that_is_gone) => *of_a_stream_that_is_gone = Rc::downgrade(owner),
            None if channel < CHANNELS => channels.push(Rc::downgrade(owner)),
            None => return None,
        }
        Some(channel)
    }

    /// What kernels need on a channel, with pieces of so many bytes.
    pub(super) fn args(&self, channel: usize, piece: u64) -> PeersArgs {
        let mut windows = [0; MAX_RANKS];
        for (window, mapped) in windows.iter_mut().zip(&self.mapped) {
            let start = mapped.as_ref().map_or(self.own.memory.address(), MappedMemory::address);
            *window = start + channel as u64 * channel_bytes(self.ranks());
        }
        PeersArgs {
            rounds: self.own.rounds.address() + (channel * MAX_BLOCKS * size_of::<u32>()) as u64,
            windows,
            ranks: self.ranks() as u32,
            rank: self.rank as u32,
            piece: piece as u32,
            room: self.room() as u32,
        }
    }

    /// The handle of an area's memory for the other ranks, by its address.
    ///
    /// # Errors
    /// The driver's.
    pub fn handle_of(address: u64) -> Result<PeerHandle> {
        handle_of(address)
    }

    /// Maps the other ranks' areas that belong to the area at `own` of this rank; `handles` are of each rank's area, by
    /// rank. Kernels of all ranks write rows into all of them. Ranks reach and leave areas in the same order.
    ///
    /// # Errors
    /// The driver's; too many areas.
    pub fn reach(&self, own: Range<u64>, handles: &[PeerHandle]) -> Result<()> {
        let mapped = map_others(self.rank, handles)?;
        let mut row = [0; MAX_RANKS];
        for (start, mapped) in row.iter_mut().zip(&mapped) {
            *start = mapped.as_ref().map_or(own.start, MappedMemory::address);
        }
        let mut reached = self.reached.borrow_mut();
        let number = reached.iter().position(Option::is_none).unwrap_or(reached.len());
        if number == MAX_AREAS {
            let problem = format!("{MAX_AREAS} areas are shared already, and there is room for no more");
            return Err(Error::Driver { call: "peer memory", problem });
        }
        copy_to_device(self.areas() + (number * size_of_val(&row)) as u64, bytemuck::cast_slice::<u64, u8>(&row))?;
        let area = Some(ReachedArea { own, _mapped: mapped });
        match reached.get_mut(number) {
            Some(free) => *free = area,
            None => reached.push(area),
        }
        Ok(())
    }

    /// Waits for the kernels of this rank, and unmaps the areas that belong to the one that begins at `address`. Does nothing for
    /// an area that is not reached.
    ///
    /// # Errors
    /// A failed kernel.
    pub fn leave(&self, address: u64) -> Result<()> {
        let streams: Vec<_> = self.channels.borrow().iter().filter_map(Weak::upgrade).collect();
        streams.iter().try_for_each(|stream| stream.synchronize())?;
        let mut reached = self.reached.borrow_mut();
        let of_area =
            |reached: &&mut Option<ReachedArea>| reached.as_ref().is_some_and(|reached| reached.own.start == address);
        if let Some(of_area) = reached.iter_mut().rev().find(of_area) {
            *of_area = None;
        }
        Ok(())
    }

    /// Where memory of this rank lies in the areas that all reach. `None` if the others do not reach it.
    pub(super) fn place_in_areas(&self, address: u64, bytes: usize) -> Option<u64> {
        let reached = self.reached.borrow();
        let holds = |area: &ReachedArea| area.own.start <= address && address + bytes as u64 <= area.own.end;
        let number = reached.iter().position(|area| area.as_ref().is_some_and(holds))?;
        let start = reached[number].as_ref()?.own.start;
        Some((number as u64) << OFFSET_BITS | (address - start))
    }

    /// The address of the table of areas.
    pub(super) fn areas(&self) -> u64 {
        self.own.areas.address()
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
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_source() {
        let source = include_str!("../../kernels/headers/peers.cuh");
        for (name, value) in [("SLOTS", SLOTS), ("MAX_BLOCKS", MAX_BLOCKS as u64), ("MAX_RANKS", MAX_RANKS as u64)] {
            assert!(source.contains(&format!("static const u32 {name} = {value};")), "{name} is not {value} there");
        }
        assert!(source.contains("FLAG_WORDS = 4;"), "16 bytes between two flags");
        let rows = include_str!("../../kernels/transfers/peer_rows.cu");
        assert!(rows.contains(&format!("OFFSET_BITS = {OFFSET_BITS};")), "an offset has {OFFSET_BITS} bits");
    }

    #[test]
    fn the_list_of_kernels_is_that_of_the_source() {
        let names_after = |source: &'static str, word: &'static str| {
            let rest = source.split(word).skip(1).filter_map(|rest| rest.split_once(')'));
            rest.map(|(names, _)| names.rsplit(", ").next().unwrap()).filter(|name| name.starts_with("peer_"))
        };
        let sums = names_after(include_str!("../../kernels/transfers/peers.cu"), "KERNEL(");
        let rows = names_after(include_str!("../../kernels/transfers/peer_rows.cu"), "PEER_ROWS(");
        assert_eq!(sums.chain(rows).collect::<Vec<_>>(), KERNELS);
    }
}
