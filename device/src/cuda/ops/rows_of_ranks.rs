//! Rows that go straight to their places on the ranks of their experts, and back.

use crate::cuda::ops::collective::THREADS;
use crate::cuda::peers::{Peers, PeersArgs};
use crate::cuda::{Grid, Queue, fill, kernel_struct};
use crate::ops::{Collective, RowsOfRanks, RowsWay};
use crate::{Error, Result, Tensor};

/// The most blocks of an exchange: as many multiprocessors can do nothing else meanwhile.
const MOST_BLOCKS: usize = 8;
/// Bytes of rows for which a block is worth its wait for other ranks.
const BYTES_OF_A_BLOCK: usize = 128 << 10;

/// The blocks of an exchange. The ranks have room for as many rows, so they have as many blocks.
fn blocks(output: &Tensor) -> usize {
    output.bytes().div_ceil(BYTES_OF_A_BLOCK).clamp(1, MOST_BLOCKS)
}

kernel_struct! {
    /// `Rows` of `kernels/transfers/peer_rows.cu`.
    RowsArgs {
        u64: input, output, offsets, places, pairs, areas, at;
        PeersArgs: peers;
        u32: experts, choices, words, lanes, bound, padding;
    }
}

/// See [`RowsOfRanks`].
///
/// # Errors
/// An output that the other ranks do not reach; the driver's.
pub(in crate::cuda::ops) fn exchange_rows(
    op: &Collective,
    rows: &RowsOfRanks,
    peers: &Peers,
    channel: usize,
    queue: &Queue<'_>,
) -> Result<()> {
    let (input, output) = (op.input, op.output);
    let Some(at) = peers.place_in_areas(output.address, output.bytes()) else {
        let problem = "the other ranks do not reach the output. Fix: share the area with them (Communicator::share)";
        return Err(Error::operation(rows.name(), problem));
    };
    let line = RowsOfRanks::line(&input);
    let wide = line.is_multiple_of(16) && [input, output].iter().all(|tensor| tensor.address.is_multiple_of(16));
    let word = if wide { 16 } else { 4 };
    let words = line / word;
    let (way, choices) = match rows.way {
        RowsWay::ToExperts => ("experts", rows.pairs.elements() / input.shape.rows()),
        RowsWay::ToTokens => ("tokens", 1),
    };
    let block = fill! {
        RowsArgs: rows.{offsets, places, pairs}; input, output, areas: peers.areas(), at, peers: peers.args(channel, 0),
        experts: rows.experts(), choices, words, lanes: words.next_power_of_two().min(32),
        bound: rows.bound(&input, &output), padding: 0u32
    };
    queue.launch_block(&format!("peer_rows_to_{way}_by_{word}"), Grid::line(blocks(&output), THREADS), &block)
}
