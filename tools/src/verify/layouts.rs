//! The ranks of a layout to verify.

use parallel::{Axis, Grid};

/// The most ranks that are threads of one host at once.
const MOST_RANKS: usize = 16;

/// A run's own layout, if it has at most 16 ranks. Otherwise smaller ones: all axes at 2, and every two of them at 3 or
/// 4. An axis of 2 ranks cannot show if a number of ranks is taken for 2, or a neighbour for all others.
pub(super) fn layouts(grid: Grid) -> Vec<Grid> {
    if grid.ranks() <= MOST_RANKS {
        return vec![grid];
    }
    let size = |axis, most: usize| match grid.size(axis) {
        size if size <= most => size,
        size if size.is_multiple_of(2) || most < 3 => most,
        _ => 3,
    };
    let at = |largest: &[Axis]| {
        let of = |axis| size(axis, if largest.contains(&axis) { 4 } else { 1 });
        of_sizes(Axis::ALL.map(of))
    };
    let twos = of_sizes(Axis::ALL.map(|axis| size(axis, 2)));
    let [tensor, data, pipeline] = Axis::ALL;
    let pairs = [[tensor, data], [tensor, pipeline], [data, pipeline]].map(|pair| at(&pair));
    let mut all: Vec<Grid> = Vec::new();
    for grid in [twos].into_iter().chain(pairs) {
        // A layout that lies within another one shows nothing more.
        let within = |other: &Grid| Axis::ALL.iter().all(|&axis| grid.size(axis) <= other.size(axis));
        if !all.iter().any(within) {
            all.push(grid);
        }
    }
    all
}

/// The grid with these sizes along the axes of [`Axis::ALL`].
pub(super) fn of_sizes([tensor, data, pipeline]: [usize; 3]) -> Grid {
    let ranks = tensor * data * pipeline;
    match Grid::new(ranks, &[(Axis::Tensor, tensor), (Axis::Pipeline, pipeline)]) {
        Some(grid) => grid,
        None => unreachable!("the sizes are above 0 and make up the ranks"),
    }
}

/// The same grid with another size of an axis; `None` if these are too many ranks.
pub(super) fn with_size(grid: Grid, axis: Axis, size: usize) -> Option<Grid> {
    let other = of_sizes(Axis::ALL.map(|of| if of == axis { size } else { grid.size(of) }));
    (other.ranks() <= MOST_RANKS).then_some(other)
}

/// The name of an axis.
pub(super) fn name(axis: Axis) -> &'static str {
    match axis {
        Axis::Tensor => "tensor",
        Axis::Data => "data",
        Axis::Pipeline => "pipeline",
    }
}

/// A layout in words.
pub(crate) fn words(grid: Grid) -> String {
    let [tensor, pipeline, data] = [Axis::Tensor, Axis::Pipeline, Axis::Data].map(|axis| grid.size(axis));
    format!("tensor {tensor} x pipeline {pipeline} x data {data}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_layout_becomes_small_ones_in_which_every_two_axes_of_three_ranks_and_more_meet() {
        let sizes = |sizes: [usize; 3]| {
            let of = |grid: Grid| Axis::ALL.map(|axis| grid.size(axis));
            layouts(of_sizes(sizes)).into_iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(sizes([2, 4, 2]), [[2, 4, 2]]);
        assert_eq!(sizes([8, 8, 4]), [[2, 2, 2], [4, 4, 1], [4, 1, 4], [1, 4, 4]]);
        assert_eq!(sizes([2, 9, 6]), [[2, 2, 2], [2, 3, 1], [2, 1, 4], [1, 3, 4]]);
        assert_eq!(sizes([1, 64, 1]), [[1, 2, 1], [1, 4, 1]]);
    }
}
