//! Operations that a pass moves from one region to another.

use device::DType;
use device::ops::{Add, Copy};
use graph_manager::{ManagerOptions, Mempool};

use crate::toy::{LaterSums, Mode, Region, StepContext, ToyPolicy, WIDTH, toy_with};

#[test]
fn operations_are_nodes_of_the_region_that_a_pass_puts_them_in() {
    let toy = toy_with(ToyPolicy { splits_backward: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    (0..2).for_each(|_| toy.train(&mut manager, 2, 0).unwrap());
    for graph in manager.report().graphs {
        let nodes = match graph.name.split(" of ").next().unwrap() {
            "forward" => 2,
            "backward" | "weight gradients" => 1,
            "optimizer" => 0,
            other => panic!("{other}"),
        };
        assert_eq!(graph.nodes.len(), nodes, "{graph:?}");
    }
}

#[test]
fn what_a_later_operation_reads_is_kept_until_it_has_run() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let toy = toy_with(ToyPolicy { splits_backward: true, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.set_passes(vec![Box::new(LaterSums::default())]);
            let x = cx.region(Region::Inputs { microbatch: 0 }, (), |cx, ()| {
                let x = cx.tensor("x", [WIDTH], DType::F32)?;
                cx.run(Copy { input: toy.inputs.at(0), output: x })?;
                Ok(x)
            })?;
            cx.region(Region::Backward { layer: 0, microbatch: 0 }, x, |cx, x| {
                let twice = cx.tensor("twice", [WIDTH], DType::F32)?;
                cx.run(Add { a: x, b: x, output: twice })?;
                cx.run(Copy { input: twice, output: toy.sum() })
            })?;
            // Were `twice` scratch, this would overwrite it.
            cx.region(Region::Forward { layer: 1, microbatch: 0 }, (), |cx, ()| {
                let other = cx.tensor("other", [WIDTH], DType::F32)?;
                cx.run(Copy { input: toy.inputs.at(1), output: other })
            })?;
            cx.region(Region::WeightGrads { layer: 0, microbatch: 0 }, (), |_, ()| Ok(()))
        };
        let expected: Vec<f32> = toy.device.download(&toy.inputs.at(0)).unwrap();
        for _ in 0..4 {
            manager.step(Mode::Train, 1, &mut step).unwrap();
            let sum: Vec<f32> = toy.device.download(&toy.sum()).unwrap();
            assert!(sum.iter().zip(&expected).all(|(sum, x)| *sum == 2.0 * x), "{mempool:?}");
        }
    }
}
