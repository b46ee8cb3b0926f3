//! Ranks as threads: every kind of transfer, order, and errors when ranks disagree or wait for each other.

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::{assert_right, tensor, value};
use device::Communicator;
use device::ops::CollectiveKind::{self, AllReduceSum, Receive, ReduceScatterSum, Send};
use parallel::{Axis, Mesh, MeshSizes, ThreadRank, ThreadWorld};

/// Runs `rank` on a thread for each of `size` ranks. Returns their results in rank order.
fn on_ranks<R: std::marker::Send>(size: usize, timeout: Duration, rank: impl Fn(ThreadRank) -> R + Sync) -> Vec<R> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let places = ThreadWorld::ranks(size, timeout).into_iter();
        let threads: Vec<_> = places.map(|place| scope.spawn(move || rank(place))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(240);

/// Does an in-place transfer of `length` ones to its end; the error in words, if there is one.
fn transfer(group: &dyn Communicator, kind: CollectiveKind, length: usize) -> Option<String> {
    let mut values = vec![1.0_f32; length];
    let tensor = tensor(&mut values);
    let started = group.start(kind, &tensor, &tensor).unwrap();
    started.wait().err().map(|error| error.to_string())
}

#[test]
fn every_kind_of_transfer_is_right_in_worlds_of_one_to_five_ranks() {
    for size in 1..=5 {
        on_ranks(size, LONG, |place| assert_right(&*place.communicator("world")));
    }
}

#[test]
fn groups_of_a_mesh_do_not_hear_each_other() {
    let mesh = Mesh::new(MeshSizes { tensor: 2, pipeline: 3, ..MeshSizes::of(12) }).unwrap();
    on_ranks(12, LONG, |place| {
        let group = |axis: Axis| place.split(axis.name(), &mesh.members(place.rank(), mesh.axes(axis)));
        let [tensor, context, data, pipeline] = Axis::DENSE.map(group);
        assert_eq!((tensor.size(), context.size(), data.size(), pipeline.size()), (2, 1, 2, 3));
        let positions = Axis::DENSE.map(|axis| mesh.position(place.rank(), axis));
        assert_eq!([tensor.rank(), context.rank(), data.rank(), pipeline.rank()], positions);
        for group in [&*pipeline, &*data, &*tensor, &*data] {
            assert_right(group);
        }
    });
}

#[test]
fn sums_are_taken_in_rank_order() {
    on_ranks(4, LONG, |place| {
        let group = place.communicator("data");
        let mut values: Vec<f32> = (0..1000).map(|i| value(group.rank(), 0, i)).collect();
        let all = tensor(&mut values);
        group.start(AllReduceSum, &all, &all).unwrap().wait().unwrap();
        for (index, got) in values.iter().enumerate() {
            let expected = (0..4).map(|rank| value(rank, 0, index)).reduce(|a, b| a + b).unwrap();
            assert_eq!(got.to_bits(), expected.to_bits());
        }
    });
}

#[test]
fn ranks_that_disagree_on_length_or_kind_are_told_so() {
    let errors = on_ranks(3, LONG, |place| {
        let group = place.communicator("data");
        transfer(&*group, AllReduceSum, if group.rank() == 1 { 5 } else { 4 }).unwrap()
    });
    let other = "all_reduce on data: number 0: 4 f32 here, 5 f32 on rank 1";
    assert_eq!(errors, [other, "all_reduce on data: number 0: 5 f32 here, 4 f32 on rank 0", other]);
    let errors = on_ranks(2, LONG, |place| {
        let kind = if place.rank() == 0 { AllReduceSum } else { ReduceScatterSum };
        transfer(&*place.communicator("data"), kind, 4).unwrap()
    });
    assert_eq!(errors[0], "all_reduce on data: number 0: all_reduce here, reduce_scatter on rank 1");
}

#[test]
fn ranks_that_wait_for_one_that_ended_are_told_at_once_who_waits_for_what() {
    let errors = on_ranks(3, LONG, |place| {
        let group = place.communicator("data");
        assert_eq!(transfer(&*group, AllReduceSum, 4), None);
        if group.rank() == 1 { None } else { transfer(&*group, AllReduceSum, 4) }
    });
    let deadlock = "deadlock: rank 0 waits for ranks [1] in all_reduce number 1 on data; rank 1 has ended; \
                    rank 2 waits for ranks [1] in all_reduce number 1 on data";
    let expected = Some(format!("all_reduce on data: number 1: {deadlock}"));
    assert_eq!(errors, [expected.clone(), None, expected]);
}

#[test]
fn two_ranks_that_send_first_are_a_deadlock_and_one_that_receives_first_is_none() {
    let results = on_ranks(2, LONG, |place| {
        let other = 1 - place.rank();
        let group = place.communicator("pipeline");
        let first = [Send { to: other }, Receive { from: other }];
        let order = if place.rank() == 0 { first } else { [first[1], first[0]] };
        order.into_iter().for_each(|kind| assert_eq!(transfer(&*group, kind, 4), None));
        transfer(&*group, Send { to: other }, 4).or_else(|| transfer(&*group, Receive { from: other }, 4))
    });
    let deadlock = "deadlock: rank 0 waits for ranks [1] in send number 1 on pipeline; \
                    rank 1 waits for ranks [0] in send number 1 on pipeline";
    let expected = Some(format!("send on pipeline: number 1: {deadlock}"));
    assert_eq!(results, [expected.clone(), expected]);
}

#[test]
fn communicators_used_in_another_order_are_a_deadlock() {
    let results = on_ranks(2, LONG, |place| {
        let (first, second) = (place.communicator("first"), place.communicator("second"));
        let (a, b) = if place.rank() == 0 { (first, second) } else { (second, first) };
        transfer(&*a, AllReduceSum, 4).or_else(|| transfer(&*b, AllReduceSum, 4))
    });
    assert!(results.iter().all(|error| error.as_ref().is_some_and(|text| text.contains("deadlock"))), "{results:?}");
}

#[test]
fn a_wait_for_a_rank_that_is_busy_ends_after_the_timeout() {
    let done = Barrier::new(2);
    let errors = on_ranks(2, Duration::from_millis(50), |place| {
        let group = place.communicator("data");
        let error = (group.rank() == 0).then(|| transfer(&*group, AllReduceSum, 4)).flatten();
        done.wait();
        error
    });
    assert_eq!(errors[0].as_deref(), Some("all_reduce on data: number 0: waited 50ms for ranks [1]"));
}

#[test]
fn a_transfer_starts_without_waiting_for_the_others() {
    let started = Barrier::new(2);
    let sums = on_ranks(2, LONG, |place| {
        let group = place.communicator("data");
        let mut values = [1.0_f32];
        let all = tensor(&mut values);
        if group.rank() == 1 {
            started.wait();
        }
        let request = group.start(AllReduceSum, &all, &all).unwrap();
        if group.rank() == 0 {
            started.wait();
        }
        request.wait().unwrap();
        values[0]
    });
    assert_eq!(sums, [2.0, 2.0]);
}
