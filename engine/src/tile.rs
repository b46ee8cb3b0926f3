//! Tiles: neighbouring rows of a microbatch.

use device::Tensor;
use device::ops::{DropoutPart, DropoutSite};

use crate::batch_sizes::BatchSizes;
use crate::step_policy::StepContext;

/// A tile has a multiple of so many rows: the host computes as many at once, so that its bits do not depend on tiles.
const ROWS: usize = 128;

/// Neighbouring rows of a microbatch.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    first: usize,
    rows: usize,
    /// Tokens of a sample that are here.
    tokens: usize,
}

impl Tile {
    /// So many tiles of all rows. All but the last are equally large.
    pub(crate) fn all(cx: &StepContext<'_>, rows: usize, tiles: usize) -> Vec<Tile> {
        let size = rows.div_ceil(tiles).next_multiple_of(ROWS);
        let tokens = BatchSizes::of(cx).tokens_per_sample;
        (0..rows).step_by(size).map(|first| Tile { first, rows: size.min(rows - first), tokens }).collect()
    }

    /// Whether the tile has the first rows.
    pub(crate) fn is_first(self) -> bool {
        self.first == 0
    }

    /// The tile's rows of a tensor of all rows.
    pub(crate) fn of(self, whole: Tensor) -> Tensor {
        let width = whole.shape.last();
        whole.view(self.first * width, [self.rows, width])
    }

    /// A tensor that is there for one tile at a time, as large as this tile.
    pub(crate) fn scratch(self, largest: Tensor) -> Tensor {
        largest.view(0, [self.rows, largest.shape.last()])
    }

    /// The same masks for the tile's rows.
    pub(crate) fn dropout(self, site: DropoutSite) -> DropoutSite {
        let (first_row, tokens) = (site.part.first_row + self.first, self.tokens);
        DropoutSite { part: DropoutPart { first_row, tokens, ..site.part }, ..site }
    }
}
