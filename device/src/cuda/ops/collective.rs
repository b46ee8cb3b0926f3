//! Transfers between ranks: by kernels of our own between GPUs that reach each other's memory, else by the communicator's
//! library.

use crate::communicator::CollectiveKind;
use crate::cuda::kernels::Grid;
use crate::cuda::peers::{MAX_BLOCKS, MAX_RANKS, Peers};
use crate::cuda::{Queue, StreamHandle};
use crate::ops::Collective;
use crate::{DType, Result};

/// A thread moves 16 bytes at a time.
const THREADS: u32 = 512;

/// The kernels' struct of the same name in `kernels/peers.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Transfer {
    input: u64,
    output: u64,
    bytes: u64,
    stride: u64,
    rounds: u64,
    windows: [u64; MAX_RANKS],
    ranks: u32,
    rank: u32,
    piece: u32,
    room: u32,
}

/// See [`Collective`].
pub(super) fn collective(op: &Collective, queue: &Queue<'_>) -> Result<()> {
    let by_peers = op.communicator.peers().filter(|peers| peers.takes(op));
    match by_peers.and_then(|peers| Some((peers, peers.lane(queue.stream)?))) {
        Some((peers, lane)) => peer_transfer(op, peers, lane, queue),
        None => {
            let stream = StreamHandle(queue.stream.handle().cast());
            op.communicator.enqueue(op.kind, &op.input, &op.output, stream)
        }
    }
}

/// One or two kernels. Two ranks that both get a sum both add all of it up. Where they are more, each adds up a part and gives
/// the others that part, which moves fewer bytes.
fn peer_transfer(op: &Collective, peers: &Peers, lane: usize, queue: &Queue<'_>) -> Result<()> {
    let ranks = peers.ranks() as u64;
    let (input, output) = (op.input.address, op.output.address);
    let bytes = op.input.bytes() as u64;
    let sum = if op.input.dtype == DType::Bf16 { "peer_sum_bf16" } else { "peer_sum_f32" };
    let (rounds, windows) = peers.memory(lane);
    let launch = |kernel, input, output, bytes: u64, stride| {
        let (piece, blocks) = division(bytes, peers.room());
        let (ranks, rank) = (ranks as u32, peers.rank() as u32);
        let (piece, room) = (piece as u32, peers.room() as u32);
        let transfer = Transfer { input, output, bytes, stride, rounds, windows, ranks, rank, piece, room };
        queue.launch_block(kernel, Grid::line(blocks, THREADS), &transfer)
    };
    let part = bytes / ranks;
    match op.kind {
        CollectiveKind::AllGather => launch("peer_gather", input, output, bytes, 0),
        CollectiveKind::ReduceScatterSum => launch(sum, input, output, part, part),
        _ if ranks == 2 || !part.is_multiple_of(16) || part < peers.room() => launch(sum, input, output, bytes, 0),
        _ => {
            let own = output + peers.rank() as u64 * part;
            launch(sum, input, own, part, part)?;
            launch("peer_gather", own, output, part, 0)
        }
    }
}

/// Bytes of a piece, and the number of blocks, for a transfer of so many bytes: as few rounds as `room` allows, with pieces of
/// one size.
fn division(bytes: u64, room: u64) -> (u64, usize) {
    let (turn, blocks) = (u64::from(THREADS) * 16, MAX_BLOCKS as u64);
    let rounds = bytes.div_ceil(blocks * room);
    let piece = bytes.div_ceil(blocks * rounds).next_multiple_of(turn).min(room);
    (piece, bytes.div_ceil(piece).min(blocks) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_transfer_has_as_few_rounds_as_its_slots_allow() {
        assert_eq!(division(16, 64 << 10), (8 << 10, 1));
        assert_eq!(division(1 << 20, 64 << 10), (16 << 10, 64));
        assert_eq!(division(8 << 20, 64 << 10), (64 << 10, 64));
        assert_eq!(division(5 << 20, 64 << 10), (40 << 10, 64));
    }

    proptest! {
        #[test]
        fn every_block_has_a_piece_and_every_piece_has_room(words in 1_u64..1 << 24, ranks in 2_u32..=8) {
            let (bytes, room) = (words * 16, (128 << 10) / u64::from(ranks).next_power_of_two());
            let (piece, blocks) = division(bytes, room);
            prop_assert!(piece.is_multiple_of(16) && piece <= room && (1..=MAX_BLOCKS).contains(&blocks));
            prop_assert!(blocks as u64 <= bytes.div_ceil(piece));
        }
    }
}
