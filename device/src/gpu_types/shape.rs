//! From shapes to the names of kernels and to grids. A grid depends only on the shape and on the number of
//! multiprocessors.

use super::Grid;
use crate::cuda::Queue;
use crate::{DType, Tensor};

/// Threads of a block, unless a kernel needs another number.
pub(crate) const THREADS: usize = 256;

/// How much a thread of a kernel loads and stores at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadWidth {
    /// 16 bytes at a time.
    Vector,
    /// One value at a time.
    Scalar,
}

impl LoadWidth {
    /// `Vector` if a row is a whole number of vectors and every tensor begins at a multiple of 16 bytes.
    pub(crate) fn of(columns: usize, tensors: impl IntoIterator<Item = Tensor>) -> LoadWidth {
        let fits = |tensor: Tensor| {
            tensor.address.is_multiple_of(16) && columns.is_multiple_of(LoadWidth::Vector.values(tensor.dtype))
        };
        if tensors.into_iter().all(fits) { LoadWidth::Vector } else { LoadWidth::Scalar }
    }

    /// The number of values that are loaded at a time.
    pub(crate) fn values(self, dtype: DType) -> usize {
        match self {
            LoadWidth::Vector => 16 / dtype.size(),
            LoadWidth::Scalar => 1,
        }
    }

    /// The kernel's name for a type, as `FOR_EACH_FLOAT` in `common.cuh` forms it.
    pub(crate) fn kernel(self, name: &str, dtype: DType) -> String {
        let suffix = if self == LoadWidth::Scalar { "_scalar" } else { "" };
        format!("{name}_{dtype}{suffix}")
    }
}

/// A grid for a loop over `packs` in any order.
pub(crate) fn over_packs(packs: usize, queue: &Queue<'_>) -> Grid {
    Grid::line(packs.div_ceil(THREADS).min(queue.multiprocessors() * 8), THREADS)
}

/// A grid: x covers the `packs` of a row, one thread per pack, and y distributes the rows.
pub(crate) fn over_rows(rows: usize, packs: usize, queue: &Queue<'_>) -> Grid {
    let blocks = packs.div_ceil(THREADS);
    let threads = packs.div_ceil(blocks.max(1)).next_multiple_of(32).max(32);
    let shares = (queue.multiprocessors() * 4096 / (threads * blocks.max(1))).clamp(1, 65_535).min(rows);
    Grid::plane(blocks, shares, threads)
}
