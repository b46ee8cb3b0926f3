//! The blocks of a launch.

/// The blocks of a launch, and what each has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// Blocks along x and y.
    pub(crate) blocks: (usize, usize),
    /// Threads of a block.
    pub(crate) threads: usize,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: usize,
    /// Blocks of a cluster: these can meet and write to each other's shared memory. 0 without clusters.
    pub(crate) cluster: usize,
}

impl Grid {
    /// A row of blocks without dynamic shared memory and clusters.
    pub(crate) fn line(blocks: usize, threads: usize) -> Grid {
        Grid::plane(blocks, 1, threads)
    }

    /// Rows of blocks without dynamic shared memory and clusters.
    pub(crate) fn plane(columns: usize, rows: usize, threads: usize) -> Grid {
        Grid { blocks: (columns, rows), threads, shared: 0, cluster: 0 }
    }
}
