//! Marks: how far a device has come, as another thread reads it.

use std::time::Duration;

use device::ops::{Collective, CollectiveKind, Fill};
use device::{DType, Device, HostOptions, Order, Progress, Reached};
use parallel::{ThreadRank, ThreadWorld};

/// Does on rank `place` a step of `forward`, an all-reduce and a message from rank 0 to rank 1, captured in a graph
/// that is launched three times. Returns the progress that can be read after each launch.
fn launches(place: &ThreadRank) -> Vec<Reached> {
    let device = Device::host(HostOptions::default()).unwrap();
    let progress = Progress::default();
    device.watch(progress.clone()).unwrap();
    let (data, pipeline) = (place.communicator("data"), place.communicator("pipeline"));
    let stream = device.stream("compute");
    let area = device.allocate("x", 64).unwrap();
    let x = area.tensor("x", 0, [16], DType::F32);
    stream.begin_capture().unwrap();
    stream.submit(progress.region("forward of layer 0")).unwrap();
    stream.submit(Fill { output: x, value: 1.0 }).unwrap();
    stream.submit(Collective::in_place(CollectiveKind::AllReduceSum, data, x)).unwrap();
    let kind = if place.rank() == 0 { CollectiveKind::Send { to: 1 } } else { CollectiveKind::Receive { from: 0 } };
    stream.submit(Collective::in_place(kind, pipeline, x)).unwrap();
    let graph = stream.end_capture("step").unwrap();
    assert_eq!((progress.reached().region, progress.reached().marks), (None, 0), "what is captured has not run");
    let step = |step| {
        stream.submit(progress.step(step)).unwrap();
        graph.launch(&stream).unwrap();
        progress.reached()
    };
    (0..3).map(step).collect()
}

#[test]
fn a_launched_graph_leaves_its_marks_and_ranks_number_their_transfers_alike() {
    let reached: Vec<Vec<Reached>> = std::thread::scope(|scope| {
        let places = ThreadWorld::ranks(2, Duration::from_secs(240)).into_iter();
        let threads: Vec<_> = places.map(|place| scope.spawn(move || launches(&place))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let order = |communicator: &str, between| Order { communicator: communicator.into(), ranks: vec![0, 1], between };
    for (rank, kind) in ["send", "receive"].into_iter().enumerate() {
        for (step, reached) in (0..).zip(&reached[rank]) {
            let count = step + 1;
            let expected = Reached {
                marks: (4 + 5) * count, // each mark, and each operation of the host: the marks and the fill
                step: Some(step),
                region: Some("forward of layer 0".into()),
                transfer: Some((format!("{kind} on pipeline"), count)),
                orders: vec![(order("data", None), count), (order("pipeline", Some((0, 1))), count)],
            };
            assert_eq!(*reached, expected, "rank {rank}");
        }
    }
}

#[test]
fn more_orders_than_there_are_lanes_are_left_unmarked() {
    let progress = Progress::default();
    for order in 0..100 {
        progress.begin("barrier", Order { communicator: format!("{order}"), ranks: vec![0], between: None });
    }
    let reached = progress.reached();
    assert_eq!((reached.marks, reached.orders.len()), (30, 30));
    assert!(reached.orders.iter().all(|(_, count)| *count == 1), "{reached:?}");
}
