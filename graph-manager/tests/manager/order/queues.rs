//! The order of queues if graphs and eager regions take turns: waits come from the list, whatever the code joins.

use device::DType;
use device::ops::Add;
use graph_manager::{CheckReplays, ManagerOptions, SideStream};

use crate::named::{StepContext, bench, copy, fill};
use crate::toy::{LAYERS, Mode, toy};

#[test]
fn a_side_queue_keeps_its_order_across_the_borders_of_graphs() {
    let bench = bench();
    let (x, y, z) = (bench.x, bench.y, bench.z);
    let side = SideStream::new(&bench.device, "beside");
    let mut manager = bench.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    // Each piece of work is on the side queue, and nothing is joined.
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region("eager before", (), |cx, ()| {
            let own = cx.tensor("own", [4], DType::F32)?;
            let work = [fill(own, 2.0).into(), Add { a: x, b: own, output: x }.into()];
            cx.fork(&side, work)?.leave();
            Ok(())
        })?;
        cx.region("graph", (), |cx, ()| {
            let own = cx.tensor("own", [4], DType::F32)?;
            let work = [fill(own, 3.0).into(), Add { a: x, b: own, output: x }.into(), copy(x, y).into()];
            cx.fork(&side, work)?.leave();
            Ok(())
        })?;
        cx.region("eager between", (), |cx, ()| {
            let own = cx.tensor("own", [4], DType::F32)?;
            let work = [fill(own, 4.0).into(), Add { a: x, b: own, output: x }.into()];
            cx.fork(&side, work)?.leave();
            Ok(())
        })?;
        cx.region("another graph", (), |cx, ()| {
            cx.fork(&side, [Add { a: x, b: y, output: z }.into(), fill(x, 0.0).into()])?.leave();
            Ok(())
        })
    };
    for seed in 0..12 {
        bench.device.shuffle_replays(Some(seed));
        manager.step("step", 1, &mut step).unwrap();
        assert_eq!([x, y, z].map(|tensor| bench.value(tensor)), [0.0, 5.0, 14.0]);
    }
    assert_eq!(manager.report().graphs.len(), 2);
}

#[test]
fn a_queue_keeps_its_order_across_graphs_also_where_no_data_does() {
    let bench = bench();
    let side = SideStream::new(&bench.device, "beside");
    let mut manager = bench.manager(ManagerOptions::default());
    let order = ["eager first", "graph", "eager second", "eager third", "another graph"];
    let mut step = |cx: &mut StepContext<'_>| {
        order.into_iter().zip([bench.x, bench.y, bench.z, bench.x, bench.y]).try_for_each(|(region, output)| {
            cx.region(region, (), |cx, ()| {
                cx.fork(&side, [fill(output, 1.0).into()])?.leave();
                Ok(())
            })
        })
    };
    for _ in 0..4 {
        manager.step("step", 1, &mut step).unwrap();
    }
    // A queue waits for none of its own: the list has its order.
    let mut entries = Vec::new();
    manager.list("step", 1, |entry| entries.push(entry));
    assert!(entries.iter().all(|entry| entry.queue == entries[0].queue && entry.waits.is_empty()), "{entries:?}");
}

#[test]
fn the_next_step_begins_after_all_queues_of_a_step_have_ended() {
    let bench = bench();
    let side = SideStream::new(&bench.device, "beside");
    for region in ["eager", "graph"] {
        let mut manager = bench.manager(ManagerOptions::default());
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region("begin", (), |cx, ()| cx.run(copy(bench.x, bench.z)))?;
            cx.region(region, (), |cx, ()| {
                cx.fork(&side, [bench.count().into()])?.leave();
                Ok(())
            })
        };
        bench.device.zero(&bench.x).unwrap();
        for number in 0..6 {
            bench.device.shuffle_replays(Some(number));
            manager.step("step", 1, &mut step).unwrap();
            // Work after a step is also in its stream's order. Otherwise the checker would find a race.
            bench.compute.submit(copy(bench.x, bench.y)).unwrap();
            bench.compute.submit(fill(bench.z, -1.0)).unwrap();
            assert_eq!(bench.value(bench.y), number as f32 + 1.0);
        }
    }
}

#[test]
fn two_numbers_of_microbatches_share_their_graphs_and_change_no_bit() {
    for (first, second) in [(4, 2), (2, 4), (3, 3)] {
        let plain = toy();
        let mut reference = plain.manager(ManagerOptions { enable: false, ..ManagerOptions::default() });
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions {
            poison: true,
            check_replays: CheckReplays::Always,
            ..ManagerOptions::default()
        });
        for microbatches in [first, second, first, second, second, first] {
            plain.train(&mut reference, microbatches, 0).unwrap();
            toy.train(&mut manager, microbatches, 0).unwrap();
            let [sums, expected] = [&toy, &plain].map(|toy| toy.device.download::<f32>(&toy.sums).unwrap());
            assert_eq!(sums, expected, "{microbatches} microbatches");
        }
        assert_eq!(manager.report().graphs.len(), 2 * LAYERS, "{:?}", manager.report().graphs);
        assert_eq!(manager.expected_graphs(Mode::Train), 2 * LAYERS);
    }
}
