//! The mesh: the groups of Megatron's rank generator, and for all small layouts that groups divide the ranks.

use parallel::{Axes, Axis, Mesh, MeshSizes, NoMesh};

/// The sizes of axes that share a rank's number, nearest neighbours first.
type Sizes<const N: usize> = [(Axis, usize); N];

/// A rank's group along an axis by counting through all positions, as Megatron's rank generator numbers them.
fn counted<const N: usize>(sizes: &Sizes<N>, rank: usize, axis: Axis) -> Vec<usize> {
    let position = |rank: usize| {
        let mut left = rank;
        sizes.map(|(axis, size)| {
            let here = left % size;
            left /= size;
            (axis, here)
        })
    };
    let others = |rank: usize| position(rank).into_iter().filter(|(of, _)| *of != axis).collect::<Vec<_>>();
    let all: usize = sizes.iter().map(|(_, size)| size).product();
    (0..all).filter(|&other| others(other) == others(rank)).collect()
}

/// All layouts of so many ranks, with cuts that divide each other or not.
fn layouts(ranks: usize) -> Vec<MeshSizes> {
    let divisors = |of: usize| (1..=of).filter(move |size| of.is_multiple_of(*size));
    let mut all = Vec::new();
    for pipeline in divisors(ranks) {
        let stage = ranks / pipeline;
        for tensor in divisors(stage) {
            for context in divisors(stage / tensor) {
                for expert_tensor in divisors(stage) {
                    for expert in divisors(stage / expert_tensor) {
                        let sizes =
                            MeshSizes { tensor, context, expert, expert_tensor, pipeline, ..MeshSizes::of(ranks) };
                        all.push(sizes);
                    }
                }
            }
        }
    }
    all
}

#[test]
fn groups_are_those_of_megatrons_rank_generator_in_every_layout_of_8_16_24_and_64_ranks() {
    for ranks in [8, 16, 24, 64] {
        let (mut meshes, mut refused) = (0, 0);
        for sizes in layouts(ranks) {
            let MeshSizes { tensor, context, expert, expert_tensor, pipeline, .. } = sizes;
            let stage = ranks / pipeline;
            let mut cuts = [tensor, tensor * context, expert_tensor, expert_tensor * expert, stage];
            cuts.sort_unstable();
            let divide = cuts.windows(2).all(|pair| pair[1].is_multiple_of(pair[0]));
            let mesh = match Mesh::new(sizes) {
                Ok(mesh) if divide => mesh,
                Err(NoMesh::Cuts { experts, .. }) if !divide => {
                    refused += 1;
                    let works = |&expert: &usize| Mesh::new(MeshSizes { expert, ..sizes }).is_ok();
                    assert_eq!(experts, (1..=stage).filter(works).collect::<Vec<_>>(), "{sizes:?}");
                    continue;
                }
                other => panic!("{other:?} of {sizes:?}"),
            };
            meshes += 1;
            let dense = [(Axis::Tensor, tensor), (Axis::Context, context)];
            let data = (Axis::Data, stage / tensor / context);
            let experts = [(Axis::ExpertTensor, expert_tensor), (Axis::Expert, expert)];
            let expert_data = (Axis::ExpertData, stage / expert_tensor / expert);
            let stages = (Axis::Pipeline, pipeline);
            for sizes in [[dense[0], dense[1], data, stages], [experts[0], experts[1], expert_data, stages]] {
                for (axis, size) in sizes {
                    assert_eq!(mesh.size(axis), size, "{axis:?} of {mesh:?}");
                    for rank in (0..ranks).step_by(if ranks > 16 { 7 } else { 1 }) {
                        let members = mesh.members(rank, mesh.axes(axis));
                        assert_eq!(members, counted(&sizes, rank, axis), "{axis:?} of rank {rank} in {mesh:?}");
                    }
                }
            }
        }
        assert_eq!(refused > 0, ranks == 24, "{ranks} ranks: {meshes} meshes, {refused} refused");
    }
}

#[test]
fn sixteen_ranks_of_two_by_four_by_two_have_the_groups_megatron_gives_them() {
    let mesh = Mesh::new(MeshSizes { tensor: 2, pipeline: 2, ..MeshSizes::of(16) }).unwrap();
    assert_eq!(Axis::DENSE.map(|axis| mesh.size(axis)), [2, 1, 4, 2]);
    let group = |rank, axis| mesh.members(rank, mesh.axes(axis));
    // From the docstring of Megatron's `initialize_model_parallel`, with two stages instead of four.
    assert_eq!(group(0, Axis::Tensor), [0, 1]);
    assert_eq!(group(15, Axis::Tensor), [14, 15]);
    assert_eq!(group(0, Axis::Data), [0, 2, 4, 6]);
    assert_eq!(group(9, Axis::Data), [9, 11, 13, 15]);
    assert_eq!(group(3, Axis::Pipeline), [3, 11]);
    assert_eq!(Axis::DENSE.map(|axis| mesh.position(13, axis)), [1, 0, 2, 1]);
    // Axes join: the ranks of a stage.
    assert_eq!(mesh.members(13, mesh.axes(Axis::Tensor) | mesh.axes(Axis::Data)), (8..16).collect::<Vec<_>>());
    assert_eq!(mesh.place(13, mesh.axes(Axis::Tensor) | mesh.axes(Axis::Pipeline)).index, 3);
    // Neighbours divide, and others have copies.
    let mesh = Mesh::new(MeshSizes { copies: 2, ..mesh.sizes() }).unwrap();
    let group = |axis| mesh.members(9, mesh.axes(axis));
    assert_eq!([Axis::Shards, Axis::Copies, Axis::Data].map(group), [vec![9, 11], vec![9, 13], vec![9, 11, 13, 15]]);
    assert!(Mesh::new(MeshSizes { copies: 3, ..mesh.sizes() }).is_err());
}

#[test]
fn experts_over_tensor_and_context_ranks_have_digits_that_no_single_axis_has() {
    // Experts over ranks that share layers and tokens: more expert ranks than data-parallel ones.
    let sizes = MeshSizes { tensor: 2, context: 4, expert: 4, expert_tensor: 1, ..MeshSizes::of(16) };
    let mesh = Mesh::new(sizes).unwrap();
    let [tensor, context, expert] = [Axis::Tensor, Axis::Context, Axis::Expert].map(|axis| mesh.axes(axis));
    assert_eq!(mesh.members(5, expert), [4, 5, 6, 7]);
    assert_eq!(mesh.count((tensor | context) - expert), 2, "the part of the context that holds copies of experts");
    assert_eq!(mesh.members(5, mesh.axes(Axis::ExpertData)), [1, 5, 9, 13]);
}

#[test]
fn copies_of_key_heads_are_neighbours() {
    let mesh = Mesh::new(MeshSizes { tensor: 4, key_head_copies: 2, ..MeshSizes::of(8) }).unwrap();
    let [tensor, copies] = [Axis::Tensor, Axis::KeyHeadCopies].map(|axis| mesh.axes(axis));
    assert_eq!(mesh.members(6, copies), [6, 7]);
    assert_eq!(mesh.members(6, tensor - copies), [4, 6]);
    assert_eq!(mesh.place(6, tensor - copies).index, 1, "the second key head");
}

#[test]
fn ranks_that_cannot_be_divided_have_no_mesh() {
    for (ranks, tensor, pipeline) in [(0, 1, 1), (4, 3, 1), (4, 2, 4), (4, 0, 1), (4, 1, 0), (4, usize::MAX, 2)] {
        let mesh = Mesh::new(MeshSizes { tensor, pipeline, ..MeshSizes::of(ranks) });
        assert!(matches!(mesh, Err(NoMesh::Ranks { .. })), "{ranks} ranks, {tensor} x {pipeline}: {mesh:?}");
    }
    let sizes = MeshSizes { tensor: 2, expert: 3, ..MeshSizes::of(12) };
    let words = Mesh::new(sizes).unwrap_err().to_string();
    let expected = "tensor ranks = 2 does not divide expert tensor x expert ranks = 3; expert ranks that work: \
                    [1, 2, 4, 6, 12]";
    assert_eq!(words, expected);
}

#[test]
fn every_set_of_digits_divides_the_ranks_and_sets_without_a_common_digit_meet_in_one_rank() {
    for sizes in layouts(24).into_iter().chain(layouts(16)) {
        let Ok(mesh) = Mesh::new(sizes) else { continue };
        let named = Axis::ALL.map(|axis| mesh.axes(axis));
        let mut sets: Vec<Axes> = named.iter().flat_map(|&a| named.iter().flat_map(move |&b| [a | b, a - b])).collect();
        sets.sort_unstable_by_key(|axes| format!("{axes:?}"));
        sets.dedup();
        let everything = named.into_iter().fold(Axes::NONE, |all, axes| all | axes);
        assert_eq!(mesh.count(everything), mesh.ranks());
        for axes in sets {
            let mut firsts = 0;
            for rank in 0..mesh.ranks() {
                let (members, place) = (mesh.members(rank, axes), mesh.place(rank, axes));
                assert!(members.is_sorted() && members.len() == mesh.count(axes) && place.count == members.len());
                assert_eq!(members[place.index], rank);
                assert!(members.iter().all(|&other| mesh.members(other, axes) == members), "{mesh:?}: no division");
                firsts += usize::from(place.is_first());
                let meet = mesh.members(rank, everything - axes).into_iter().filter(|other| members.contains(other));
                assert_eq!(meet.collect::<Vec<_>>(), [rank], "{mesh:?}");
            }
            assert_eq!(firsts * mesh.count(axes), mesh.ranks(), "each group has one first rank");
        }
    }
}
