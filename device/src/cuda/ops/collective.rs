//! Transfers between ranks: by kernels of our own between GPUs that reach each other's memory, else by the communicator's
//! library.

use crate::communicator::CollectiveKind;
use crate::cuda::peers::{MAX_BLOCKS, MAX_RANKS, PIECE, Peers};
use crate::cuda::{Queue, StreamHandle};
use crate::cuda::kernels::Grid;
use crate::ops::Collective;
use crate::{DType, Result};

/// A thread moves 16 bytes at a time, and a block sends a piece of 16 KiB in two turns.
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

/// One or two kernels. A sum that all ranks get goes to every rank at once where they are two; where they are more, each
/// rank sums a part and sends that part to the others, which moves fewer bytes.
fn peer_transfer(op: &Collective, peers: &Peers, lane: usize, queue: &Queue<'_>) -> Result<()> {
    let ranks = peers.ranks() as u64;
    let (input, output) = (op.input.address, op.output.address);
    let bytes = op.input.bytes() as u64;
    let sum = if op.input.dtype == DType::Bf16 { "peer_sum_bf16" } else { "peer_sum_f32" };
    let (rounds, windows) = peers.memory(lane);
    let launch = |kernel, input, output, bytes: u64, stride| {
        let transfer = Transfer { input, output, bytes, stride, rounds, windows, ranks: ranks as u32, rank: peers.rank() as u32 };
        let blocks = bytes.div_ceil(PIECE).min(MAX_BLOCKS as u64) as usize;
        queue.launch_block(kernel, Grid::line(blocks, THREADS), &transfer)
    };
    let part = bytes / ranks;
    match op.kind {
        CollectiveKind::AllGather => launch("peer_gather", input, output, bytes, 0),
        CollectiveKind::ReduceScatterSum => launch(sum, input, output, part, part),
        _ if ranks == 2 || !part.is_multiple_of(16) || part < PIECE => launch(sum, input, output, bytes, 0),
        _ => {
            let own = output + peers.rank() as u64 * part;
            launch(sum, input, own, part, part)?;
            launch("peer_gather", own, output, part, 0)
        }
    }
}
