//! The places of rows that come from all ranks.

mod host;

use super::rows_of_ranks::check_places;
use crate::cuda::{Grid, KernelFile, KernelOperation, Queue, fill, kernel_file, kernel_struct};
use crate::ops::{Operation, ensure, ensure_dtype, ensure_elements, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// Finds the places of the rows of a rank's experts, which come from all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaceRows {
    /// `(ranks, experts of all + 1)`, i32: see [`RowsOfRanks::offsets`](super::RowsOfRanks::offsets).
    pub all: Tensor,
    /// The number of this rank.
    pub rank: usize,
    /// `(experts, ranks)`, i32, written: the first row of each of this rank's experts that comes from that rank.
    pub places: Tensor,
    /// `(experts + 1)`, i32, written: the first row of each of this rank's experts, then the number of rows, at most those
    /// of `pairs`. Rows beyond these are left out.
    pub offsets: Tensor,
    /// `(rows)`, i32, written: the row itself, as the pair of a row that has one pair. `-1 - row` beyond the number of rows:
    /// such a pair is dropped.
    pub pairs: Tensor,
    /// `(1)`, f32, written: the rows that are left out. `None` if there is room for all.
    pub beyond: Option<Tensor>,
}

impl Operation for PlaceRows {
    const NAME: &'static str = "place_rows";

    fn check(&self) -> Result<()> {
        let numbers =
            [("all", &self.all), ("places", &self.places), ("offsets", &self.offsets), ("pairs", &self.pairs)];
        numbers.iter().try_for_each(|(of, tensor)| ensure_dtype(Self::NAME, of, tensor, DType::I32))?;
        let ranks = self.all.shape.rows();
        check_places(Self::NAME, ranks, &self.all, &self.places)?;
        if let Some(beyond) = &self.beyond {
            ensure_values(Self::NAME, "beyond", beyond, DType::F32, 1)?;
        }
        ensure(Self::NAME, self.rank < ranks, || format!("there is no rank {} of {ranks}", self.rank))?;
        ensure_elements(Self::NAME, "offsets", &self.offsets, self.places.shape.rows() + 1)
    }

    tensors! { read all; write places, offsets, pairs, beyond }
}

/// Threads of a block that places rows; `SCAN_THREADS` in `kernels/headers/scan.cuh`.
const SCAN_THREADS: usize = 256;

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
        let block = fill! {
            PlaceRowsArgs: self.{all, places, offsets, pairs, beyond, rank}; ranks: self.places.shape.last(),
            experts: self.places.shape.rows(), bound
        };
        let blocks = bound.div_ceil(SCAN_THREADS).clamp(1, queue.multiprocessors() * 4);
        queue.launch_block("place_rows", Grid::line(blocks, SCAN_THREADS), &block)
    }
}
