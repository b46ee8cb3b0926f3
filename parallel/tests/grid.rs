//! The rank grid: known groups, and for all small shapes that groups cut the world in three ways at once.

use std::collections::HashSet;

use parallel::{Grid, Place};

#[test]
fn sixteen_ranks_of_two_by_four_by_two_have_the_groups_megatron_gives_them() {
    let grid = Grid::new(16, 2, 2).unwrap();
    assert_eq!(grid, Grid { tensor: 2, data: 4, pipeline: 2 });
    // From the docstring of Megatron's `initialize_model_parallel`, with two stages instead of four.
    assert_eq!(grid.tensor_group(0), [0, 1]);
    assert_eq!(grid.tensor_group(15), [14, 15]);
    assert_eq!(grid.data_group(0), [0, 2, 4, 6]);
    assert_eq!(grid.data_group(9), [9, 11, 13, 15]);
    assert_eq!(grid.pipeline_group(3), [3, 11]);
    assert_eq!(grid.place(13), Place { tensor: 1, data: 2, pipeline: 1 });
}

#[test]
fn ranks_that_cannot_be_divided_have_no_grid() {
    for (ranks, tensor, pipeline) in [(0, 1, 1), (4, 3, 1), (4, 2, 4), (4, 0, 1), (4, 1, 0), (4, usize::MAX, 2)] {
        assert_eq!(Grid::new(ranks, tensor, pipeline), None, "{ranks} ranks, {tensor} x {pipeline}");
    }
}

#[test]
fn every_kind_of_group_cuts_the_world_and_two_groups_of_other_kinds_meet_in_one_rank() {
    for (tensor, data, pipeline) in (1..5).flat_map(|t| (1..5).flat_map(move |d| (1..4).map(move |p| (t, d, p)))) {
        let grid = Grid::new(tensor * data * pipeline, tensor, pipeline).unwrap();
        assert_eq!(grid.data, data);
        type Group = fn(&Grid, usize) -> Vec<usize>;
        let kinds: [(Group, usize); 3] =
            [(Grid::tensor_group, tensor), (Grid::data_group, data), (Grid::pipeline_group, pipeline)];
        for rank in 0..grid.ranks() {
            assert_eq!(grid.rank(grid.place(rank)), rank);
            let groups: Vec<HashSet<usize>> =
                kinds.iter().map(|(group, _)| group(&grid, rank).into_iter().collect()).collect();
            for (at, (group, size)) in kinds.iter().enumerate() {
                let members = group(&grid, rank);
                assert_eq!(members.len(), *size);
                assert!(members.is_sorted() && members.contains(&rank));
                assert!(members.iter().all(|&other| group(&grid, other) == members), "{grid:?}: not a cut");
                for other in &groups[at + 1..] {
                    assert_eq!(groups[at].intersection(other).collect::<Vec<_>>(), [&rank], "{grid:?}");
                }
            }
        }
    }
}
