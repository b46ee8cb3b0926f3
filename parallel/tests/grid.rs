//! The rank grid: known groups, and for all small shapes that the groups of each axis divide the world.

use std::collections::HashSet;

use parallel::{Axis, Grid};

#[test]
fn sixteen_ranks_of_two_by_four_by_two_have_the_groups_megatron_gives_them() {
    let grid = Grid::new(16, &[(Axis::Tensor, 2), (Axis::Pipeline, 2)]).unwrap();
    assert_eq!(Axis::ALL.map(|axis| grid.size(axis)), [2, 4, 2]);
    // From the docstring of Megatron's `initialize_model_parallel`, with two stages instead of four.
    assert_eq!(grid.group(0, Axis::Tensor), [0, 1]);
    assert_eq!(grid.group(15, Axis::Tensor), [14, 15]);
    assert_eq!(grid.group(0, Axis::Data), [0, 2, 4, 6]);
    assert_eq!(grid.group(9, Axis::Data), [9, 11, 13, 15]);
    assert_eq!(grid.group(3, Axis::Pipeline), [3, 11]);
    assert_eq!(Axis::ALL.map(|axis| grid.coordinate(13, axis)), [1, 2, 1]);
}

#[test]
fn ranks_that_cannot_be_divided_have_no_grid() {
    for (ranks, tensor, pipeline) in [(0, 1, 1), (4, 3, 1), (4, 2, 4), (4, 0, 1), (4, 1, 0), (4, usize::MAX, 2)] {
        let grid = Grid::new(ranks, &[(Axis::Tensor, tensor), (Axis::Pipeline, pipeline)]);
        assert_eq!(grid, None, "{ranks} ranks, {tensor} x {pipeline}");
    }
}

#[test]
fn the_groups_of_an_axis_divide_the_world_and_groups_of_two_axes_meet_in_one_rank() {
    for (tensor, data, pipeline) in (1..5).flat_map(|t| (1..5).flat_map(move |d| (1..4).map(move |p| (t, d, p)))) {
        let sizes = [(Axis::Tensor, tensor), (Axis::Pipeline, pipeline)];
        let grid = Grid::new(tensor * data * pipeline, &sizes).unwrap();
        assert_eq!((grid.ranks(), grid.size(Axis::Data)), (tensor * data * pipeline, data));
        for rank in 0..grid.ranks() {
            let groups = Axis::ALL.map(|axis| grid.group(rank, axis));
            for (at, axis) in Axis::ALL.into_iter().enumerate() {
                let members = &groups[at];
                assert_eq!(members.len(), grid.size(axis));
                assert_eq!(members[grid.coordinate(rank, axis)], rank);
                assert!(members.is_sorted());
                assert!(members.iter().all(|&other| grid.group(other, axis) == *members), "{grid:?}: no division");
                for others in &groups[at + 1..] {
                    let [mine, theirs] = [members, others].map(|group| group.iter().collect::<HashSet<_>>());
                    assert_eq!(mine.intersection(&theirs).collect::<Vec<_>>(), [&&rank], "{grid:?}");
                }
            }
        }
    }
}
