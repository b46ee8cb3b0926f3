//! The captured graphs: their regions, their number and their memory.

use std::rc::Rc;

use device::DType;
use device::ops::{Copy, Fill};
use graph_manager::{CaptureAll, CudaGraphManager, GraphDot, ManagerOptions, Mempool};

use crate::toy::{LAYERS, Mode, Region, StepContext, ToyPolicy, WIDTH, on_gpu, toy, toy_with};

#[test]
fn slots_hold_several_microbatches_in_flight_and_change_no_bit() {
    for splits_backward in [false, true] {
        for (ahead, microbatches) in [(0, 1), (0, 4), (0, 7), (1, 4), (1, 7), (3, 3), (3, 4), (3, 7)] {
            let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
            let plain = toy().run(off, microbatches, ahead);
            assert!(plain[0].iter().any(|x| x.abs() > 1.0));
            for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
                for whole in [false, true] {
                    for share_io_buffers in [true, false] {
                        let toy = toy_with(ToyPolicy { whole, splits_backward, ..ToyPolicy::default() });
                        let options =
                            ManagerOptions { mempool, share_io_buffers, poison: true, ..ManagerOptions::default() };
                        let what = format!("{options:?}, {:?}", toy.policy);
                        assert_eq!(toy.run(options, microbatches, ahead), plain, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_number_of_graphs_follows_the_microbatches_in_flight_not_their_number() {
    let toy = toy();
    let count = |mempool, microbatches, ahead| {
        let options = ManagerOptions { mempool, ..ManagerOptions::default() };
        let mut manager = toy.manager(options);
        for _ in 0..3 {
            toy.train(&mut manager, microbatches, ahead).unwrap();
        }
        let report = manager.report();
        assert_eq!(report.graphs.len(), manager.expected_graphs(Mode::Train));
        assert_eq!(
            report.graphs.iter().map(|graph| graph.nodes.len()).sum::<usize>(),
            manager.expected_nodes(Mode::Train)
        );
        manager.report().graphs.len()
    };
    assert_eq!(count(Mempool::PerMicrobatch, 8, 0), 2 * LAYERS);
    assert_eq!(count(Mempool::PerMicrobatch, 8, 2), 2 * LAYERS * 3);
    assert_eq!(count(Mempool::Single, 8, 2), 2 * LAYERS * 8);
}

#[test]
fn the_plan_reuses_memory() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions { mempool: Mempool::Single, ..ManagerOptions::default() });
    manager.record(Mode::Train, 8, &mut |cx| toy.step(cx, 0)).unwrap();
    let planned: usize = manager.memory().iter().map(|area| area.bytes).sum();
    // Eight microbatches one after the other need no more than one: inputs, saved outputs, two gradients, scratch.
    assert!(planned <= (1 + LAYERS + 2 + 1) * WIDTH * 4, "{:?}", manager.memory());
}

#[test]
fn the_report_tells_graphs_nodes_eager_regions_and_bytes() {
    let toy = toy_with(ToyPolicy { optimizer_is_eager: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    for _ in 0..3 {
        toy.train(&mut manager, 2, 0).unwrap();
    }
    manager.record(Mode::Evaluate, 1, &mut |cx| toy.step(cx, 0)).unwrap();
    let report = manager.report();
    let line = report.to_string();
    // Once a step a fill, and for each microbatch a copy and twelve sums.
    let share = "eager: 11.1 % of Train (3 of 27 operations), 14.3 % of Evaluate (2 of 14 operations): begin (";
    for words in ["6 graphs, 12 nodes", share, "optimizer (it is asked to be eager)", "inputs (it reads", "slot 0"] {
        assert!(line.contains(words), "`{words}` is missing from: {line}");
    }
    assert!(!line.contains("it contains regions"), "a composite region is not listed: {line}");
}

#[test]
fn each_graph_of_the_report_has_a_drawing_with_its_name() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    assert_eq!(manager.dots().unwrap(), []);
    for _ in 0..3 {
        toy.train(&mut manager, 2, 0).unwrap();
    }
    let (report, dots) = (manager.report(), manager.dots().unwrap());
    let names: Vec<&String> = report.graphs.iter().map(|graph| &graph.name).collect();
    assert_eq!(dots.iter().map(|dot| &dot.name).collect::<Vec<_>>(), names);
    for (graph, GraphDot { name, dot }) in report.graphs.iter().zip(&dots) {
        assert!(dot.lines().next().unwrap().contains(name.as_str()), "{dot}");
        assert_eq!(dot.matches("digraph ").count(), 1, "{dot}");
        if !on_gpu() {
            assert!(graph.nodes.iter().all(|node| dot.contains(&format!("{node}\\n"))), "{name}: {dot}");
        }
    }
    assert_eq!(report.driver_bytes.is_some(), on_gpu(), "the driver's memory is measured on a GPU alone");
}

#[test]
fn a_buffer_that_a_region_uses_around_an_inner_one_is_not_scratch() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Step, (), |cx, ()| {
            let outer = cx.tensor("outer", [WIDTH], DType::F32)?;
            cx.run(Fill { output: outer, value: 1.0 })?;
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let inner = cx.tensor("inner", [WIDTH], DType::F32)?;
                cx.run(Fill { output: inner, value: 2.0 })?;
                cx.run(Copy { input: inner, output: toy.inputs.at(0) })
            })?;
            cx.run(Copy { input: outer, output: toy.sum() })
        })
    };
    for _ in 0..4 {
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap(), vec![1.0; WIDTH]);
    }
}

#[test]
fn the_barrier_comes_once_before_the_first_capture() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let count = Rc::new(std::cell::Cell::new(0));
    let counted = count.clone();
    manager.before_capture(move || {
        counted.set(counted.get() + 1);
        Ok(())
    });
    let mut counts = Vec::new();
    for _ in 0..4 {
        toy.train(&mut manager, 2, 0).unwrap();
        counts.push(count.get());
    }
    assert_eq!(counts, [0, 1, 1, 1]);
}

#[test]
fn a_region_that_does_something_else_in_another_step_has_a_graph_for_each() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    for microbatches in [2, 1, 2, 1, 2] {
        toy.train(&mut manager, microbatches, 0).unwrap();
    }
    let names: Vec<String> = manager.report().graphs.into_iter().map(|graph| graph.name).collect();
    let count = |name: &str| names.iter().filter(|other| *other == name).count();
    // The only microbatch of a step overwrites sums, others add to them. Forwards do the same in both.
    assert_eq!(count("forward of layer 0, microbatch 0"), 1, "{names:?}");
    assert_eq!(count("backward of layer 0, microbatch 0"), 2, "{names:?}");
    assert_eq!((names.len(), manager.expected_graphs(Mode::Train)), (3 * LAYERS, 3 * LAYERS), "{names:?}");
}

#[test]
fn a_captured_region_of_all_microbatches_has_a_graph_for_each_number_of_them() {
    let whole = toy_with(ToyPolicy { whole: true, ..ToyPolicy::default() });
    let plain = toy();
    let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
    let (mut manager, mut reference) = (whole.manager(ManagerOptions::default()), plain.manager(off));
    for microbatches in [4, 2, 4, 2, 3, 4] {
        whole.train(&mut manager, microbatches, 0).unwrap();
        plain.train(&mut reference, microbatches, 0).unwrap();
        let [sums, expected] = [&whole, &plain].map(|toy| toy.device.download::<f32>(&toy.sums).unwrap());
        assert_eq!(sums, expected, "{microbatches} microbatches");
    }
    assert_eq!(manager.report().graphs.len(), 3, "one for 2, 3 and 4 microbatches");
    assert_eq!(manager.expected_graphs(Mode::Train), 3);
}

#[test]
fn a_rehearsal_captures_regions_with_those_inside_them() {
    for (whole, graphs) in [(false, 2 * LAYERS), (true, 1)] {
        let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions::default());
        manager.rehearse(Mode::Train, 2, &mut |cx| toy.step(cx, 0), |_| false).unwrap();
        assert_eq!(manager.report().graphs.len(), graphs, "whole: {whole}");
    }
}

#[test]
fn modes_share_memory_and_have_graphs_of_their_own() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    manager.record(Mode::Train, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    let alone = manager.memory();
    manager.record(Mode::Evaluate, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    assert_eq!(manager.memory(), alone);
    for mode in [Mode::Train, Mode::Evaluate, Mode::Train, Mode::Evaluate] {
        manager.step(mode, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    }
    assert_eq!(manager.report().graphs.len(), 2 * 2 * LAYERS);
}

#[test]
fn regions_named_by_strings_need_no_policy_of_their_own() {
    let toy = toy();
    let policy = CaptureAll::<&'static str>::default();
    let mut manager = CudaGraphManager::new(toy.compute.clone(), ManagerOptions::default(), policy).unwrap();
    for _ in 0..3 {
        let mut step = |cx: &mut graph_manager::StepContext<'_, _>| {
            let x = cx.region("first", (), |cx, ()| {
                let x = cx.tensor("x", [WIDTH], DType::F32)?;
                cx.run(Fill { output: x, value: 2.0 })?;
                Ok(x)
            })?;
            cx.region("second", x, |cx, x| cx.run(Copy { input: x, output: toy.sum() }))
        };
        manager.step("train", 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap(), vec![2.0; WIDTH]);
    }
    let line = manager.report().to_string();
    assert!(line.starts_with("2 graphs, 2 nodes; memory: step"), "{line}");
}
