//! The ready policy for training steps.

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, Tensor};
use graph_manager::{CheckReplays, CudaGraphManager, ManagerOptions, Mempool, Result, TrainingPolicy, TrainingRegion};

use crate::toy::checked_device;

type StepContext<'m> = graph_manager::StepContext<'m, TrainingPolicy>;

const LAYERS: usize = 2;

struct Bench {
    device: Device,
    /// `(microbatches, 8)`.
    inputs: Tensor,
    sum: Tensor,
    reduced: Tensor,
    _areas: Vec<Area>,
}

impl Bench {
    fn new(microbatches: usize) -> Bench {
        let (device, mut areas) = (checked_device(), Vec::new());
        let mut tensor =
            |name: &str, rows: usize| device.allocate_tensor(&mut areas, name, [rows, 8], DType::F32).unwrap();
        let (inputs, sum, reduced) = (tensor("inputs", microbatches), tensor("sum", 1), tensor("reduced", 1));
        let values: Vec<f32> = (0..inputs.elements()).map(|i| i as f32).collect();
        device.upload(&inputs, &values).unwrap();
        Bench { device, inputs, sum, reduced, _areas: areas }
    }

    /// Layers double. Backwards add their gradient to the sum, which the last microbatch copies.
    fn step(&self, cx: &mut StepContext<'_>, ahead: usize) -> Result<()> {
        let mut in_flight = std::collections::VecDeque::new();
        for microbatch in 0..cx.microbatches() {
            in_flight.push_back((microbatch, self.forward(cx, microbatch)?));
            if in_flight.len() > ahead {
                in_flight.pop_front().map_or(Ok(()), |(microbatch, x)| self.backward(cx, microbatch, x))?;
            }
        }
        in_flight.into_iter().try_for_each(|(microbatch, x)| self.backward(cx, microbatch, x))?;
        cx.region(TrainingRegion::Once("update"), (), |cx, ()| {
            assert!(cx.is_first_microbatch() && cx.is_last_microbatch(), "work of no microbatch is both");
            cx.run(Add { a: self.reduced, b: self.sum, output: self.reduced })
        })
    }

    fn forward(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Tensor> {
        let mut x = cx.region(TrainingRegion::of_microbatch("inputs", microbatch), (), |cx, ()| {
            let x = cx.tensor("x", [1, 8], DType::F32)?;
            cx.run(Copy { input: self.inputs.at(microbatch).reshape([1, 8]), output: x })?;
            Ok(x)
        })?;
        for layer in 0..LAYERS {
            x = cx.region(TrainingRegion::forward(layer, microbatch), x, |cx, x| {
                let y = cx.tensor("y", [1, 8], DType::F32)?;
                cx.run(Add { a: x, b: x, output: y })?;
                Ok(y)
            })?;
        }
        Ok(x)
    }

    fn backward(&self, cx: &mut StepContext<'_>, microbatch: usize, x: Tensor) -> Result<()> {
        for layer in (0..LAYERS).rev() {
            cx.region(TrainingRegion::backward(layer, microbatch), x, |cx, x| {
                match cx.is_first_microbatch() && layer + 1 == LAYERS {
                    true => cx.run(Copy { input: x, output: self.sum })?,
                    false => cx.run(Add { a: self.sum, b: x, output: self.sum })?,
                }
                match cx.is_last_microbatch() {
                    true => cx.run(Copy { input: self.sum, output: self.reduced }),
                    false => Ok(()),
                }
            })?;
        }
        Ok(())
    }
}

/// The reduced sum of four steps, and the number of graphs.
fn run(options: ManagerOptions, policy: TrainingPolicy, microbatches: usize, ahead: usize) -> (Vec<Vec<f32>>, usize) {
    let bench = Bench::new(microbatches);
    let mut manager = CudaGraphManager::new(bench.device.stream("compute"), options, policy).unwrap();
    let sums = (0..4).map(|_| {
        manager.step("train", microbatches, &mut |cx| bench.step(cx, ahead)).unwrap();
        bench.device.download::<f32>(&bench.reduced).unwrap()
    });
    (sums.collect(), manager.report().graphs.len())
}

fn without_inputs() -> TrainingPolicy {
    TrainingPolicy::choosing(|region| match region {
        TrainingRegion::Microbatch { name: "inputs", .. } => Err("each microbatch has another address"),
        _ => Ok(()),
    })
}

#[test]
fn graphs_of_regions_of_layers_change_no_bit_and_first_and_last_microbatches_have_their_own() {
    for (microbatches, ahead) in [(1, 0), (4, 0), (5, 1), (4, 3)] {
        let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
        let (plain, none) = run(off, TrainingPolicy::default(), microbatches, ahead);
        // Each microbatch adds four times its input for each layer; the update adds that once more.
        let inputs = |column: usize| (0..microbatches).map(|m| (8 * m + column) as f32).sum::<f32>();
        let expected: Vec<f32> = (0..8).map(|column| 2.0 * 2.0 * 4.0 * inputs(column)).collect();
        assert_eq!((&plain, none), (&vec![expected; 4], 0));
        for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
            let options = ManagerOptions {
                mempool,
                poison: true,
                check_replays: CheckReplays::Always,
                ..ManagerOptions::default()
            };
            assert_eq!(run(options.clone(), TrainingPolicy::default(), microbatches, ahead).0, plain);
            assert_eq!(run(options, without_inputs(), microbatches, ahead).0, plain);
        }
    }
}

#[test]
fn microbatches_that_do_the_same_share_graphs() {
    let graphs = |microbatches| run(ManagerOptions::default(), without_inputs(), microbatches, 0).1;
    // Two forwards; the last layer's backward in the first, the middle and the last microbatch; the first layer's in all
    // but the last and in the last; the update.
    assert_eq!(graphs(5), 2 + 3 + 2 + 1);
    assert_eq!(graphs(9), graphs(5));
}

#[test]
fn slots_are_counted_by_chunk() {
    let bench = Bench::new(1);
    let compute = bench.device.stream("compute");
    let mut manager = CudaGraphManager::new(compute, ManagerOptions::default(), TrainingPolicy::default()).unwrap();
    let forward = |cx: &mut StepContext<'_>, chunk: usize, microbatch| {
        cx.region(TrainingRegion::forward(chunk, microbatch).in_chunk(chunk), (), |cx, ()| {
            let y = cx.tensor("y", [1, 8], DType::F32)?;
            cx.run(Fill { output: y, value: 1.0 })?;
            Ok(y)
        })
    };
    let backward = |cx: &mut StepContext<'_>, chunk: usize, microbatch, y| {
        let region = TrainingRegion::backward(chunk, microbatch).in_chunk(chunk);
        cx.region(region, y, |cx, y| cx.run(Copy { input: y, output: bench.sum }))
    };
    // Both microbatches of chunk 0 are in flight at once, those of chunk 1 one after the other.
    for _ in 0..3 {
        let step = manager.step("train", 2, &mut |cx| {
            let in_flight = [forward(cx, 0, 0)?, forward(cx, 0, 1)?];
            for microbatch in 0..2 {
                let y = forward(cx, 1, microbatch)?;
                backward(cx, 1, microbatch, y)?;
            }
            in_flight.into_iter().enumerate().try_for_each(|(microbatch, y)| backward(cx, 0, microbatch, y))
        });
        step.unwrap();
    }
    let areas: Vec<String> = manager.memory().into_iter().map(|area| area.area).collect();
    let slots: Vec<&String> = areas.iter().filter(|area| area.starts_with("slot")).collect();
    assert_eq!(slots, ["slot 0", "slot 1", "slot 0 of chunk 1"]);
    assert_eq!(manager.report().graphs.len(), 4 + 2);
}

#[test]
fn reports_name_kinds_of_regions_and_reasons() {
    let bench = Bench::new(3);
    let policy = TrainingPolicy::choosing(|region| match region {
        TrainingRegion::Layer { call, .. } if call.layer == 1 => Ok(()),
        _ => Err("it is not of layer 1"),
    });
    let compute = bench.device.stream("compute");
    let mut manager = CudaGraphManager::new(compute, ManagerOptions::default(), policy).unwrap();
    (0..3).for_each(|_| manager.step("train", 3, &mut |cx| bench.step(cx, 0)).unwrap());
    let report = manager.report();
    let eager: Vec<&str> = report.eager.iter().map(|eager| &*eager.region).collect();
    assert_eq!(eager, ["inputs", "forward of layer 0", "backward of layer 0", "update"]);
    assert!(report.eager.iter().all(|eager| eager.reason == "it is not of layer 1"));
    // A microbatch that the step does not have.
    let error = manager
        .step("evaluate", 1, &mut |cx| cx.region(TrainingRegion::of_microbatch("inputs", 1), (), |_, ()| Ok(())));
    let words = "`inputs of microbatch 1` is of microbatch 1, counted from 0, in a step of 1";
    assert!(error.unwrap_err().to_string().contains(words));
}
