//! Regions on the second lane run next to other regions of the step.

use device::DType;
use device::ops::{Add, Copy, Fill};
use graph_manager::{ManagerOptions, Mempool, Piece, Result, StepPass};

use crate::toy::{Mode, Region, StepContext, ToyPolicy, WIDTH, toy_with};

/// A region's forward of this layer and microbatch.
fn forward(layer: usize, microbatch: usize) -> Region {
    Region::Forward { layer, microbatch }
}

/// Has forwards of microbatch 1 run on the second lane. With `joins`, backwards begin after it.
struct Aside {
    joins: bool,
}

impl StepPass<Region> for Aside {
    fn name(&self) -> &'static str {
        "aside"
    }

    fn runs_aside(&mut self, region: Region) -> bool {
        matches!(region, Region::Forward { microbatch: 1, .. })
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        piece.joins_aside = self.joins && matches!(piece.region(), Region::Backward { microbatch: 0, .. });
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
        Result::Ok(x)
    };
    cx.set_passes(vec![Box::new(Aside { joins: true })]);
    cx.region(Region::Step, (), |cx, ()| {
        let aside = layers(cx, 1)?;
        let here = layers(cx, 0)?;
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
        cx.set_passes(vec![Box::new(Aside { joins: false })]);
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(forward(0, 1), (), |cx, ()| cx.run(Fill { output: toy.sum(), value: 1.0 }))?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
        })
    };
    for seed in 0..8 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 2, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums.at(1)).unwrap(), vec![1.0; WIDTH]);
    }
}
