//! A rank's communicators: one for each group that was asked for, under the name of its axis.

use std::time::Duration;

use parallel::{Axis, Connections, Mesh, MeshSizes, Placement, Purpose, Ranks, ThreadWorld, suits_peer_memory};

/// Does `work` on a thread for each rank of a mesh.
fn on_ranks(connections: &Connections, work: impl Fn(&Ranks) + Sync) {
    std::thread::scope(|scope| {
        for rank in ThreadWorld::ranks(connections.mesh.ranks(), Duration::from_secs(60)) {
            let (connections, work) = (connections.clone(), &work);
            scope.spawn(move || work(&rank.connect(&connections).unwrap()));
        }
    });
}

fn connections(sizes: MeshSizes) -> Connections {
    Connections::new(Mesh::new(sizes).unwrap(), Placement::new(sizes.pipeline, 1))
}

#[test]
fn each_group_has_one_communicator_with_the_name_of_its_axis_and_purpose() {
    let sizes = MeshSizes { tensor: 4, key_head_copies: 2, pipeline: 2, ..MeshSizes::of(16) };
    let all = connections(sizes).with(Axis::Tensor, Purpose::Aside).with(Axis::Data, Purpose::Loads);
    on_ranks(&all, |ranks| {
        let named = |axis: Axis, purpose| {
            let communicator = ranks.for_purpose(ranks.axes(axis), purpose).unwrap();
            assert_eq!(communicator.rank(), ranks.at(axis).index);
            assert_eq!(communicator.members(), ranks.mesh().members_along(ranks.rank(), axis));
            communicator.name().to_string()
        };
        assert_eq!(
            [Purpose::Main, Purpose::Aside].map(|purpose| named(Axis::Tensor, purpose)),
            ["tensor", "tensor, aside"]
        );
        assert_eq!(named(Axis::KeyHeadCopies, Purpose::Main), "key head copies");
        assert_eq!(named(Axis::Data, Purpose::Loads), "data, loads");
        assert_eq!(named(Axis::Pipeline, Purpose::Main), "pipeline");
        let chain = ranks.chain(ranks.mesh().everyone());
        assert_eq!(chain.iter().map(|group| group.name()).collect::<Vec<_>>(), ["data", "tensor", "pipeline"]);
        assert_eq!(ranks.chain(ranks.of_stage()).len(), 2);
        assert!(ranks.along(Axis::Expert).is_none(), "a rank alone in its group");
        assert!(ranks.pipeline().is_some());
    });
}

#[test]
fn axes_with_the_same_ranks_share_a_communicator() {
    // One key head: all ranks of a layer store copies of it.
    on_ranks(&connections(MeshSizes { tensor: 2, key_head_copies: 2, ..MeshSizes::of(2) }), |ranks| {
        assert_eq!(ranks.along(Axis::KeyHeadCopies).unwrap().name(), "tensor");
    });
}

#[test]
#[should_panic(expected = "no communicator `data`")]
fn a_group_that_was_not_connected_is_no_silent_gap_in_a_sum() {
    let mut connections = connections(MeshSizes::of(2));
    connections.groups.clear();
    let ranks = ThreadWorld::ranks(2, Duration::ZERO).remove(0).connect(&connections).unwrap();
    let _ = ranks.along(Axis::Data);
}

#[test]
fn ranks_with_other_tokens_have_one_communicator_and_those_that_divide_sequences_another_for_keys() {
    let sizes = MeshSizes { tensor: 2, context: 2, ..MeshSizes::of(8) };
    on_ranks(&connections(sizes), |ranks| {
        let chain = ranks.chain(ranks.of_stage());
        assert_eq!(chain.iter().map(|group| group.name()).collect::<Vec<_>>(), ["data x context", "tensor"]);
        let keys = ranks.for_purpose(ranks.axes(Axis::Context), Purpose::Keys).unwrap();
        assert_eq!((keys.name(), keys.rank()), ("context, keys", ranks.rank() / 2 % 2));
    });
}

#[test]
fn ranks_that_share_layers_or_exchange_rows_transfer_through_memory_that_their_gpus_reach() {
    let names = ["tensor", "tensor, aside", "data, rows", "expert, rows", "expert, rows, aside"];
    assert!(names.into_iter().all(suits_peer_memory));
    let names = ["data", "pipeline", "data, loads", "context, keys", "context, keys, aside", "expert data"];
    assert!(!names.into_iter().any(suits_peer_memory));
}
