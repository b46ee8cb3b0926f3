//! Work that runs next to other work of the step: operations on the branch of a region, and regions on the second lane.

use device::DType;
use device::ops::{Add, Copy, Fill};
use graph_manager::{ManagerOptions, Mempool, Result};

use crate::toy::{Mode, Region, StepContext, ToyPolicy, WIDTH, toy, toy_with};

/// A region's forward of this layer and microbatch.
fn forward(layer: usize, microbatch: usize) -> Region {
    Region::Forward { layer, microbatch }
}

#[test]
fn what_a_branch_reads_is_kept_until_the_region_ends_and_later_regions_see_what_it_wrote() {
    let toy = toy();
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(forward(0, 0), (), |cx, ()| {
                let read = cx.tensor("read", [WIDTH], DType::F32)?;
                cx.run(Fill { output: read, value: 3.0 })?;
                cx.branch(Copy { input: read, output: toy.sum() })?;
                // Were `read` thought dead, this would take its memory and race with the branch.
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                cx.run(Fill { output: scratch, value: 5.0 })?;
                cx.branch(Add { a: toy.sum(), b: read, output: toy.sum() })
            })?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
        };
        for seed in 0..8 {
            toy.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut step).unwrap();
            assert_eq!(toy.device.download::<f32>(&toy.sums.at(1)).unwrap(), vec![6.0; WIDTH]);
        }
    }
}

#[test]
fn what_writes_what_a_branch_reads_waits_for_it() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(forward(0, 0), (), |cx, ()| {
            cx.run(Fill { output: toy.inputs.at(0), value: 3.0 })?;
            cx.branch(Copy { input: toy.inputs.at(0), output: toy.sum() })?;
            cx.run(Fill { output: toy.inputs.at(0), value: 0.0 })
        })
    };
    for seed in 0..8 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap(), vec![3.0; WIDTH]);
    }
}

#[test]
fn an_inner_region_begins_after_the_branch_of_the_region_around_it() {
    let toy = toy_with(ToyPolicy { whole: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Step, (), |cx, ()| {
            cx.branch(Fill { output: toy.sum(), value: 2.0 })?;
            cx.region(forward(0, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
        })
    };
    for seed in 0..4 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums.at(1)).unwrap(), vec![2.0; WIDTH]);
    }
}

/// Two forwards whose branch outlives them, then a backward.
fn outliving(toy: &crate::toy::Toy, cx: &mut StepContext<'_>) -> Result<()> {
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(forward(0, 0), (), |cx, ()| {
            let read = cx.tensor("read", [WIDTH], DType::F32)?;
            cx.run(Fill { output: read, value: 3.0 })?;
            cx.branch(Copy { input: read, output: toy.sum() })
        })?;
        cx.region(forward(1, 0), (), |cx, ()| {
            // Were `read` thought dead, this would take its memory and race with the branch.
            let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
            cx.run(Fill { output: scratch, value: 5.0 })?;
            cx.run(Copy { input: scratch, output: toy.sums.at(2) })?;
            cx.branch(Add { a: toy.sum(), b: toy.inputs.at(1), output: toy.sum() })
        })?;
        cx.region(Region::Backward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.run(Fill { output: toy.sums.at(2), value: 7.0 })
        })?;
        cx.region(Region::Optimizer, (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
    })
}

#[test]
fn a_branch_that_outlives_its_region_is_waited_for_by_the_next_that_does_not_allow_it() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let toy = toy_with(ToyPolicy { whole: true, branch_outlives: true, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        for seed in 0..8 {
            toy.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut |cx: &mut StepContext<'_>| outliving(&toy, cx)).unwrap();
            let sums = toy.device.download::<f32>(&toy.sums).unwrap();
            assert_eq!([sums[WIDTH], sums[2 * WIDTH]], [3.0 + (WIDTH as f32).sin(), 7.0]);
        }
        let report = manager.report();
        let graph = &report.graphs[0];
        let at = |name: &str| graph.nodes.iter().position(|node| node == name).unwrap();
        let branch = at("forward of layer 0, microbatch 0/copy");
        let after = graph.waits_for(&[branch]);
        assert!(after[at("forward of layer 1, microbatch 0/add")], "{:?}", graph.nodes);
        assert!(!after[at("forward of layer 1, microbatch 0/copy")], "{:?}", graph.nodes);
        assert!(!after[at("backward of layer 0, microbatch 0/fill")], "{:?}", graph.nodes);
        assert!(after[at("optimizer/copy")], "{:?}", graph.nodes);
    }
}

#[test]
fn a_later_graph_and_the_end_of_a_step_wait_for_a_branch_that_outlives_an_eager_region() {
    let toy = toy_with(ToyPolicy { branch_outlives: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        let input = |microbatch| Region::Inputs { microbatch };
        cx.region(input(0), (), |cx, ()| cx.branch(Fill { output: toy.sum(), value: 3.0 }))?;
        cx.region(Region::Backward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.run(Fill { output: toy.sums.at(2), value: 5.0 })
        })?;
        cx.region(Region::Optimizer, (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))?;
        cx.region(input(1), (), |cx, ()| cx.branch(Copy { input: toy.sums.at(1), output: toy.sums.at(2) }))
    };
    // Eager, captured, replayed.
    for _ in 0..4 {
        manager.step(Mode::Train, 2, &mut step).unwrap();
        // Without an order the checker would find a race.
        toy.compute.submit(Fill { output: toy.sums.at(1), value: 0.0 }).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums.at(2)).unwrap(), vec![3.0; WIDTH]);
    }
}

#[test]
fn what_reads_what_an_outliving_branch_writes_waits_for_it() {
    let toy = toy_with(ToyPolicy { whole: true, branch_outlives: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(forward(0, 0), (), |cx, ()| cx.branch(Fill { output: toy.sum(), value: 3.0 }))?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
        })
    };
    for seed in 0..8 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums.at(1)).unwrap(), vec![3.0; WIDTH]);
    }
}

/// Three layers of microbatch 1 aside, each with scratch, next to three layers of microbatch 0.
fn two_lanes(toy: &crate::toy::Toy, cx: &mut StepContext<'_>) -> Result<()> {
    let layers = |cx: &mut StepContext<'_>, microbatch: usize| {
        let mut x = toy.inputs.at(microbatch);
        for layer in 0..3 {
            x = cx.region(forward(layer, microbatch), (), |cx, ()| {
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                let y = cx.tensor("y", [WIDTH], DType::F32)?;
                cx.run(Add { a: x, b: x, output: scratch })?;
                cx.run(Add { a: scratch, b: x, output: y })?;
                Ok(y)
            })?;
        }
        Ok(x)
    };
    cx.region(Region::Step, (), |cx, ()| {
        let (aside, under_way) = cx.aside(|cx| layers(cx, 1))?;
        let here = layers(cx, 0)?;
        cx.join_aside(under_way)?;
        cx.region(Region::Backward { layer: 0, microbatch: 0 }, (), |_, ()| Ok(()))?;
        let last = Region::Backward { layer: 0, microbatch: 1 };
        cx.region(last, (), |cx, ()| cx.run(Add { a: aside, b: here, output: toy.sum() }))
    })
}

#[test]
fn regions_aside_compute_what_they_would_in_turn_in_any_order_of_replay() {
    for whole in [true, false] {
        for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
            let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
            let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
            let inputs: Vec<f32> = toy.device.download(&toy.inputs).unwrap();
            for seed in 0..8 {
                toy.device.shuffle_replays(Some(seed));
                manager.step(Mode::Train, 2, &mut |cx| two_lanes(&toy, cx)).unwrap();
                let sums = toy.device.download::<f32>(&toy.sum()).unwrap();
                for (i, sum) in sums.iter().enumerate() {
                    let wanted = 27.0 * (inputs[i] + inputs[WIDTH + i]);
                    assert!((sum - wanted).abs() < 1e-4, "{mempool:?}: {sum} is not {wanted}");
                }
            }
        }
    }
}

#[test]
fn each_lane_has_scratch_of_its_own_that_its_regions_share() {
    let toy = toy_with(ToyPolicy { whole: true, ..ToyPolicy::default() });
    let mempool = Mempool::Single;
    let mut manager = toy.manager(ManagerOptions { mempool, ..ManagerOptions::default() });
    manager.step(Mode::Train, 2, &mut |cx| two_lanes(&toy, cx)).unwrap();
    let memory = manager.memory();
    let scratch: Vec<usize> =
        memory.iter().filter(|area| area.area.contains("scratch")).map(|area| area.bytes).collect();
    assert_eq!(scratch, [WIDTH * 4; 2], "{memory:?}");
}

#[test]
fn what_reads_what_is_under_way_aside_waits_for_it() {
    let toy = toy_with(ToyPolicy { whole: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Step, (), |cx, ()| {
            let fill = |cx: &mut StepContext<'_>| {
                cx.region(forward(0, 0), (), |cx, ()| cx.run(Fill { output: toy.sum(), value: 1.0 }))
            };
            let ((), under_way) = cx.aside(fill)?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))?;
            cx.join_aside(under_way)
        })
    };
    for seed in 0..8 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums.at(1)).unwrap(), vec![1.0; WIDTH]);
    }
}
