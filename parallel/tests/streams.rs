//! Transfers as operations of streams: in order, captured, replayed in random orders, under the checker.

use std::time::Duration;

use device::ops::CollectiveKind::{AllGather, AllReduceSum, Receive, ReduceScatterSum, Send};
use device::ops::{Add, Collective, Copy, Fill};
use device::{Communicator, DType, Device, Error, HostOptions, Tensor};
use parallel::ThreadWorld;

const RANKS: usize = 2;

fn on_ranks(rank: impl Fn(&Device, std::rc::Rc<dyn Communicator>) + Sync) {
    let rank = &rank;
    std::thread::scope(|scope| {
        for place in ThreadWorld::ranks(RANKS, Duration::from_secs(240)) {
            scope.spawn(move || {
                let device = Device::host(HostOptions { threads: 1, check: true, dry: false }).unwrap();
                rank(&device, place.communicator("tensor"));
            });
        }
    });
}

/// A tensor of its own area, filled with `values`; the area lives as long as the test.
fn tensor(device: &Device, values: &[f32]) -> Tensor {
    let area = device.allocate("area", values.len() * 4).unwrap();
    let tensor = area.tensor("tensor", 0, [values.len()], DType::F32);
    std::mem::forget(area);
    device.upload(&tensor, values).unwrap();
    tensor
}

#[test]
fn a_transfer_that_reads_what_the_one_before_it_wrote_comes_after_it() {
    on_ranks(|device, group| {
        let mine = group.rank() as f32;
        let (whole, part) = (tensor(device, &[mine, mine, 10.0 + mine, 10.0 + mine]), tensor(device, &[0.0; 2]));
        let stream = device.stream("compute");
        let collective = |kind, input, output| Collective { kind, communicator: group.clone(), input, output };
        stream.submit(collective(ReduceScatterSum, whole, part)).unwrap();
        stream.submit(collective(AllReduceSum, part, part)).unwrap();
        stream.submit(collective(AllGather, part, whole)).unwrap();
        stream.synchronize().unwrap();
        // (0 + 1) of the first part and (10 + 11) of the second, summed again over ranks.
        assert_eq!(device.download::<f32>(&whole).unwrap(), [22.0; 4]);
    });
}

#[test]
fn captured_transfers_give_the_same_bits_in_every_order_their_graph_allows() {
    on_ranks(|device, group| {
        let (rank, other) = (group.rank(), 1 - group.rank());
        let input = tensor(device, &[rank as f32 + 1.0; 2]);
        let (sum, received, all) = (tensor(device, &[0.0; 2]), tensor(device, &[0.0; 2]), tensor(device, &[0.0; 4]));
        let (stream, side) = (device.stream("compute"), device.stream("side"));
        let (fork, join) = (device.event(), device.event());
        let step = || -> device::Result<()> {
            let collective = |kind, input, output| Collective { kind, communicator: group.clone(), input, output };
            stream.record(&fork)?;
            side.wait(&fork)?;
            let send = Collective::in_place(Send { to: other }, group.clone(), input);
            let receive = Collective::in_place(Receive { from: other }, group.clone(), received);
            // One after the other on a stream: if both sent first, both would wait.
            let [first, second] = if rank == 0 { [send, receive] } else { [receive, send] };
            side.submit(first)?;
            side.submit(second)?;
            side.record(&join)?;
            stream.submit(Copy { input, output: sum })?;
            stream.submit(Collective::in_place(AllReduceSum, group.clone(), sum))?;
            stream.wait(&join)?;
            stream.submit(Add { a: sum, b: received, output: sum })?;
            stream.submit(collective(AllGather, sum, all))?;
            Ok(())
        };
        step().unwrap();
        stream.begin_capture().unwrap();
        step().unwrap();
        let graph = stream.end_capture("step").unwrap();
        for seed in 0..10 {
            device.shuffle_replays(Some(seed));
            stream.submit(Fill { output: all, value: -1.0 }).unwrap();
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(device.download::<f32>(&all).unwrap(), [5.0, 5.0, 4.0, 4.0], "seed {seed}");
        }
    });
}

#[test]
fn the_checker_finds_a_receive_that_races_with_a_reader() {
    on_ranks(|device, group| {
        let (tensor, copy) = (tensor(device, &[1.0; 2]), tensor(device, &[0.0; 2]));
        let (stream, side) = (device.stream("compute"), device.stream("pipeline"));
        if group.rank() == 0 {
            side.submit(Collective::in_place(Send { to: 1 }, group, tensor)).unwrap();
            stream.submit(Copy { input: tensor, output: copy }).unwrap(); // two readers
            side.synchronize().unwrap();
        } else {
            side.submit(Collective::in_place(Receive { from: 0 }, group, tensor)).unwrap();
            let error = stream.submit(Copy { input: tensor, output: copy }).unwrap_err();
            assert!(matches!(error, Error::Check(_)) && error.to_string().contains("receive"), "{error}");
            side.synchronize().unwrap();
        }
    });
}

#[test]
fn transfers_that_cannot_be_are_refused_before_they_start() {
    on_ranks(|device, group| {
        let (four, three) = (tensor(device, &[0.0; 4]), tensor(device, &[0.0; 3]));
        let stream = device.stream("compute");
        let me = group.rank();
        for (kind, input, output, problem) in [
            (AllReduceSum, four, three, "needs 4"),
            (AllGather, four, three, "needs 8"),
            (ReduceScatterSum, three, three, "cannot be cut into 2 equal parts"),
            (Send { to: me }, four, four, "cannot exchange with rank"),
            (Receive { from: 2 }, four, four, "cannot exchange with rank 2"),
        ] {
            let refused = stream.submit(Collective { kind, communicator: group.clone(), input, output }).unwrap_err();
            assert!(refused.to_string().contains(problem), "{kind:?}: {refused}");
        }
    });
}

#[test]
fn memory_that_is_dropped_under_a_transfer_is_given_to_nobody_else() {
    on_ranks(|device, group| {
        let values = [group.rank() as f32 + 1.0; 1024];
        let area = device.allocate("dropped", 4096).unwrap();
        let dropped = area.tensor("dropped", 0, [1024], DType::F32);
        device.upload(&dropped, &values).unwrap();
        let stream = device.stream("compute");
        stream.submit(Collective::in_place(AllReduceSum, group.clone(), dropped)).unwrap();
        drop(area);
        let next = tensor(device, &[0.0; 1024]);
        assert_ne!(next.address, dropped.address, "the transfer still writes there");
        stream.synchronize().unwrap();
        assert_eq!(device.download::<f32>(&next).unwrap(), [0.0; 1024]);
    });
}
