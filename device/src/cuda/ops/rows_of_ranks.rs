//! Rows that go straight to their places on the ranks of their experts, and back.

use crate::cuda::kernels::{Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::ops::collective::THREADS;
use crate::cuda::peers::{Peers, PeersArgs};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Collective, PlaceRows, RowsOfRanks, RowsWay};
use crate::{Error, Result, Tensor};

/// The most blocks of an exchange: as many multiprocessors can do nothing else meanwhile.
const MOST_BLOCKS: usize = 8;
/// Bytes of rows for which a block is worth its wait for other ranks.
const BYTES_OF_A_BLOCK: usize = 128 << 10;

/// The blocks of an exchange. The ranks have room for as many rows, so they have as many blocks.
fn blocks(output: &Tensor) -> usize {
    output.bytes().div_ceil(BYTES_OF_A_BLOCK).clamp(1, MOST_BLOCKS)
}

/// Threads of a block that places rows; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const SCAN_THREADS: u32 = 256;

kernel_struct! {
    /// `PlaceRows` of `kernels/experts/expert_exchange.cu`.
    PlaceRowsArgs {
        u64: all, places, offsets, pairs, beyond;
        u32: ranks, rank, experts, bound;
    }
}

impl KernelOperation for PlaceRows {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_exchange.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let bound = self.pairs.elements();
        let block = PlaceRowsArgs {
            all: self.all.address,
            places: self.places.address,
            offsets: self.offsets.address,
            pairs: self.pairs.address,
            beyond: self.beyond.map_or(0, |beyond| beyond.address),
            ranks: self.places.shape.last() as u32,
            rank: self.rank as u32,
            experts: self.places.shape.rows() as u32,
            bound: bound as u32,
        };
        let blocks = bound.div_ceil(SCAN_THREADS as usize).clamp(1, queue.multiprocessors() * 4);
        queue.launch_block("place_rows", Grid::line(blocks, SCAN_THREADS), &block)
    }
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
    lane: usize,
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
    let block = RowsArgs {
        input: input.address,
        output: output.address,
        offsets: rows.offsets.address,
        places: rows.places.address,
        pairs: rows.pairs.address,
        areas: peers.areas(),
        at,
        peers: peers.args(lane, 0),
        experts: rows.experts() as u32,
        choices: choices as u32,
        words: words as u32,
        lanes: words.next_power_of_two().min(32) as u32,
        bound: rows.bound(&input, &output) as u32,
        padding: 0,
    };
    queue.launch_block(&format!("peer_rows_to_{way}_by_{word}"), Grid::line(blocks(&output), THREADS), &block)
}
