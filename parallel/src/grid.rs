//! The rank grid: the groups of ranks along each axis of parallelism.

/// An axis of the rank grid.
///
/// The order is Megatron's: ranks that differ in the first axis only are neighbours, because they exchange the most data
/// and launchers fill nodes with consecutive ranks. To add an axis (context or expert parallelism come between `Tensor` and
/// `Data`), add a member here and to [`Axis::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Ranks that share each layer: tensor parallelism.
    Tensor,
    /// Ranks with the same weights and different samples: data parallelism.
    Data,
    /// Ranks with different layers: the stages of a pipeline.
    Pipeline,
}

impl Axis {
    /// All axes, the one of nearest neighbours first.
    pub const ALL: [Axis; 3] = [Axis::Tensor, Axis::Data, Axis::Pipeline];
}

/// All ranks of a run, numbered along the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Indexed by [`Axis`].
    sizes: [usize; Axis::ALL.len()],
}

impl Grid {
    /// Divides `ranks` ranks. `sizes` has the sizes of the axes other than data. The size of an axis that is not listed
    /// is 1. The data axis takes the rest. `None` if the sizes do not divide the ranks.
    ///
    /// # Panics
    /// If `sizes` lists [`Axis::Data`].
    pub fn new(ranks: usize, sizes: &[(Axis, usize)]) -> Option<Grid> {
        let mut grid = Grid { sizes: [1; Axis::ALL.len()] };
        for &(axis, size) in sizes {
            assert!(axis != Axis::Data, "the size of the data axis follows from the other sizes");
            grid.sizes[axis as usize] = size;
        }
        let model_parallel = grid.sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))?;
        if ranks == 0 || model_parallel == 0 || !ranks.is_multiple_of(model_parallel) {
            return None;
        }
        grid.sizes[Axis::Data as usize] = ranks / model_parallel;
        Some(grid)
    }

    /// The grid of `ranks` ranks that all have the whole model.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn data_parallel(ranks: usize) -> Grid {
        assert!(ranks > 0, "a grid without ranks");
        let mut grid = Grid { sizes: [1; Axis::ALL.len()] };
        grid.sizes[Axis::Data as usize] = ranks;
        grid
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// The position of a rank on an axis, from 0 to the axis's size.
    pub fn coordinate(&self, rank: usize, axis: Axis) -> usize {
        rank / self.stride(axis) % self.size(axis)
    }

    /// The ranks that differ from `rank` in their position on `axis` only, `rank` included, in ascending order.
    pub fn group(&self, rank: usize, axis: Axis) -> Vec<usize> {
        let stride = self.stride(axis);
        let first = rank - self.coordinate(rank, axis) * stride;
        (0..self.size(axis)).map(|position| first + position * stride).collect()
    }

    /// The difference between the numbers of neighbours on an axis.
    fn stride(&self, axis: Axis) -> usize {
        self.sizes[..axis as usize].iter().product()
    }
}
