//! The manager on a toy model: order, slots, boundaries, side streams, and the mistakes it refuses.

use std::rc::Rc;

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, HostOptions, Stream, Tensor};
use graph_manager::{
    CudaGraphManager, Error, Fork, GraphOptions, Mempool, Mode, Region, Result, Scope, SideStream, StepContext,
    StepShape,
};

const LAYERS: usize = 3;
const WIDTH: usize = 64;

/// A toy: `forward` doubles and adds a layer's weight, `backward` adds the kept input to the gradient and to a sum.
struct Toy {
    device: Device,
    compute: Stream,
    side: Rc<SideStream>,
    /// `(microbatches, WIDTH)`.
    inputs: Tensor,
    sum: Tensor,
    _areas: Vec<Area>,
}

fn toy() -> Toy {
    let device = Device::host(HostOptions { check: true, ..HostOptions::default() }).unwrap();
    let area = device.allocate("toy", 64 * WIDTH * 4).unwrap();
    let inputs = area.tensor("inputs", 0, [16, WIDTH], DType::F32);
    let sum = area.tensor("sum", 16 * WIDTH * 4, [WIDTH], DType::F32);
    let values: Vec<f32> = (0..16 * WIDTH).map(|i| (i as f32).sin()).collect();
    device.upload(&inputs, &values).unwrap();
    let (compute, side) = (device.stream("compute"), SideStream::new(&device, "side"));
    Toy { device, compute, side, inputs, sum, _areas: vec![area] }
}

impl Toy {
    fn forward(&self, cx: &mut StepContext<'_>, microbatch: usize) -> Result<Tensor> {
        let mut x = cx.region(Region::Inputs { layer: 0, microbatch }, (), |cx, ()| {
            let x = cx.tensor("x", [WIDTH], DType::F32)?;
            cx.run(Copy { input: self.inputs.at(microbatch), output: x })?;
            Ok(x)
        })?;
        for layer in 0..LAYERS {
            x = cx.region(Region::Forward { layer, microbatch }, x, |cx, x| {
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                let y = cx.tensor("y", [WIDTH], DType::F32)?;
                cx.run(Add { a: x, b: x, output: scratch })?;
                cx.run(Add { a: scratch, b: x, output: y })?;
                cx.keep(x);
                Ok(y)
            })?;
        }
        Ok(x)
    }

    fn backward(&self, cx: &mut StepContext<'_>, microbatch: usize, y: Tensor) -> Result<()> {
        let mut grad = y;
        for layer in (0..LAYERS).rev() {
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                let kept: Tensor = cx.kept();
                let out = cx.tensor("grad", [WIDTH], DType::F32)?;
                cx.run(Add { a: grad, b: kept, output: out })?;
                cx.run(Add { a: self.sum, b: out, output: self.sum })?;
                Ok(out)
            })?;
        }
        Ok(())
    }

    /// One step with `ahead` forwards before the first backward, as a pipeline stage has them.
    fn step(&self, cx: &mut StepContext<'_>, ahead: usize) -> Result<()> {
        cx.region(Region::Step, (), |cx, ()| {
            cx.region(Region::Iteration, (), |cx, ()| {
                cx.region(Region::Begin, (), |cx, ()| cx.run(Fill { output: self.sum, value: 0.0 }))?;
                let mut outputs = Vec::new();
                let microbatches = cx.microbatches();
                for m in 0..microbatches + ahead {
                    if m < microbatches {
                        outputs.push(self.forward(cx, m)?);
                    }
                    if m >= ahead {
                        self.backward(cx, m - ahead, outputs[m - ahead])?;
                    }
                }
                Ok(())
            })?;
            cx.region(Region::Optimizer, (), |_, ()| Ok(()))
        })
    }

    fn manager(&self, options: GraphOptions) -> CudaGraphManager {
        CudaGraphManager::new(self.compute.clone(), options, StepShape::default()).unwrap()
    }

    /// The sum after each of six steps.
    fn run(&self, options: GraphOptions, microbatches: usize, ahead: usize) -> Vec<Vec<f32>> {
        let mut manager = self.manager(options);
        (0..6)
            .map(|_| {
                manager.step(Mode::Train, microbatches, &mut |cx| self.step(cx, ahead)).unwrap();
                self.device.download(&self.sum).unwrap()
            })
            .collect()
    }
}

#[test]
fn slots_hold_several_microbatches_in_flight_and_change_no_bit() {
    let toy = toy();
    for ahead in [0, 1, 3] {
        for microbatches in [ahead.max(1), 4, 7] {
            let off = GraphOptions { enable: false, ..GraphOptions::default() };
            let plain = toy.run(off, microbatches, ahead);
            assert!(plain[0].iter().any(|x| x.abs() > 1.0));
            for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
                for scope in [Scope::PerLayer, Scope::FullIteration] {
                    for share_io_buffers in [true, false] {
                        let options =
                            GraphOptions { mempool, scope, share_io_buffers, poison: true, ..GraphOptions::default() };
                        assert_eq!(toy.run(options.clone(), microbatches, ahead), plain, "{options:?}");
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
        let options = GraphOptions { mempool, ..GraphOptions::default() };
        let mut manager = toy.manager(options);
        for _ in 0..3 {
            manager.step(Mode::Train, microbatches, &mut |cx| toy.step(cx, ahead)).unwrap();
        }
        assert_eq!(manager.report().graphs.len(), manager.expected_graphs(Mode::Train));
        manager.report().graphs.len() - 1 // without the optimizer's
    };
    assert_eq!(count(Mempool::PerMicrobatch, 8, 0), 2 * LAYERS);
    assert_eq!(count(Mempool::PerMicrobatch, 8, 2), 2 * LAYERS * 3);
    assert_eq!(count(Mempool::Single, 8, 2), 2 * LAYERS * 8);
}

#[test]
fn the_plan_reuses_memory() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions { mempool: Mempool::Single, ..GraphOptions::default() });
    manager.record(Mode::Train, 8, &mut |cx| toy.step(cx, 0)).unwrap();
    let planned: usize = manager.memory().iter().map(|area| area.bytes).sum();
    // Eight microbatches one after the other need no more than one: inputs, kept outputs, two gradients, scratch.
    assert!(planned <= (1 + LAYERS + 2 + 1) * WIDTH * 4, "{:?}", manager.memory());
}

#[test]
fn a_replay_out_of_order_names_what_was_expected_and_what_came() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    for _ in 0..3 {
        manager.step(Mode::Train, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    }
    let error = manager.step(Mode::Train, 2, &mut |cx| toy.step(cx, 1)).unwrap_err().to_string();
    let expected = "expects `backward of layer 2, microbatch 0`, got `inputs of microbatch 1`";
    assert!(error.contains("replay out of order") && error.contains(expected), "{error}");
}

#[test]
fn a_step_that_ends_early_is_out_of_order_too() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    manager.step(Mode::Train, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    let mut half = |cx: &mut StepContext<'_>| cx.region(Region::Step, (), |_, ()| Ok(()));
    let error = manager.step(Mode::Train, 2, &mut half).unwrap_err().to_string();
    assert!(error.contains("expects `iteration`, got `the end of the step`"), "{error}");
}

/// One captured region that reads `input`.
fn reader(cx: &mut StepContext<'_>, input: Tensor) -> Result<Tensor> {
    cx.region(Region::Forward { layer: 0, microbatch: 0 }, input, |cx, input| {
        let y = cx.tensor("y", [WIDTH], DType::F32)?;
        cx.run(Copy { input, output: y })?;
        Ok(y)
    })
}

#[test]
fn an_input_that_moved_after_capture_is_refused_unless_boundaries_are_copied() {
    for share_io_buffers in [true, false] {
        let toy = toy();
        let mut manager = toy.manager(GraphOptions { share_io_buffers, ..GraphOptions::default() });
        let step = |manager: &mut CudaGraphManager, row: usize| -> Result<Vec<f32>> {
            let mut output = None;
            manager.step(Mode::Evaluate, 1, &mut |cx| {
                output = Some(reader(cx, toy.inputs.at(row))?);
                Ok(())
            })?;
            Ok(toy.device.download(&output.unwrap())?)
        };
        for row in [0, 0, 0] {
            step(&mut manager, row).unwrap();
        }
        let moved = step(&mut manager, 5);
        if share_io_buffers {
            let error = moved.unwrap_err().to_string();
            assert!(error.contains("input `tensor` lies at another address"), "{error}");
            assert!(error.contains("share_io_buffers = false"), "{error}");
        } else {
            assert_eq!(moved.unwrap(), toy.device.download::<f32>(&toy.inputs.at(5)).unwrap());
        }
    }
}

#[test]
fn a_side_stream_left_open_in_a_region_is_error_904_with_the_region() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let _never_joined = cx.fork(&toy.side, [Fill { output: toy.sum, value: 1.0 }.into()])?;
            Ok(())
        })
    };
    manager.step(Mode::Train, 1, &mut step).unwrap();
    let error = manager.step(Mode::Train, 1, &mut step).unwrap_err().to_string();
    assert!(error.contains("forward of layer 0") && error.contains("904") && error.contains("`side`"), "{error}");
}

#[test]
fn allocating_inside_a_region_fails_at_its_capture() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |_, ()| {
            toy.device.allocate("sneaky", 64)?;
            Ok(())
        })
    };
    manager.step(Mode::Train, 1, &mut step).unwrap();
    let error = manager.step(Mode::Train, 1, &mut step).unwrap_err();
    assert!(matches!(error, Error::Device { .. }) && error.to_string().contains("`sneaky`"), "{error}");
}

#[test]
fn a_buffer_taken_outside_of_a_region_is_refused() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut step = |cx: &mut StepContext<'_>| cx.tensor("lost", [1], DType::F32).map(|_| ());
    let error = manager.step(Mode::Train, 1, &mut step).unwrap_err().to_string();
    assert!(error.contains("`lost`") && error.contains("StepContext::region"), "{error}");
}

#[test]
fn a_buffer_that_changes_size_is_named() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions { enable: false, ..GraphOptions::default() });
    let mut size = 8;
    let mut step = |cx: &mut StepContext<'_>| {
        size += 1;
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.tensor("grows", [size], DType::F32).map(|_| ())
        })
    };
    let error = manager.step(Mode::Train, 1, &mut step).unwrap_err().to_string();
    assert!(error.contains("`grows` of 40 bytes, the recorded step took `grows` of 36 bytes"), "{error}");
}

#[test]
fn graphs_without_a_warm_up_step_are_refused() {
    let toy = toy();
    let options = GraphOptions { warmup_steps: 0, ..GraphOptions::default() };
    let error = CudaGraphManager::new(toy.compute.clone(), options, StepShape::default()).err().unwrap().to_string();
    assert!(error.contains("warmup_steps is 0") && error.contains("Fix:"), "{error}");
}

#[test]
fn the_report_tells_graphs_nodes_eager_regions_and_bytes() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions { capture_optimizer: false, ..GraphOptions::default() });
    for _ in 0..3 {
        manager.step(Mode::Train, 2, &mut |cx| toy.step(cx, 0)).unwrap();
    }
    let report = manager.report();
    let line = report.to_string();
    for words in ["6 graphs, 12 nodes", "optimizer (capture_optimizer is off)", "inputs (it reads", "slot 0"] {
        assert!(line.contains(words), "`{words}` is missing from: {line}");
    }
    let dot = report.dot();
    assert!(dot.contains("forward of layer 2, microbatch 0/add") && dot.contains("n0_0 -> n0_1"), "{dot}");
}

#[test]
fn memory_a_side_stream_works_on_is_not_reused_before_the_join() {
    let toy = toy();
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let mut manager = toy.manager(GraphOptions { mempool, poison: true, ..GraphOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            let kept = cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let sent = cx.tensor("sent", [WIDTH], DType::F32)?;
                cx.run(Fill { output: sent, value: 3.0 })?;
                let fork = cx.fork(&toy.side, [Copy { input: sent, output: toy.sum }.into()])?;
                // Were `sent` thought dead after its submission, these would take its memory and race with the copy.
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                let kept = cx.tensor("kept", [WIDTH], DType::F32)?;
                cx.run(Fill { output: scratch, value: 5.0 })?;
                cx.run(Fill { output: kept, value: 4.0 })?;
                cx.join(fork)?;
                Ok(kept)
            })?;
            cx.region(Region::Forward { layer: 1, microbatch: 0 }, kept, |cx, kept| {
                cx.run(Copy { input: kept, output: toy.inputs.at(0) })
            })
        };
        for seed in 0..8 {
            toy.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut step).unwrap();
            assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![3.0; WIDTH]);
        }
    }
}

#[test]
fn two_forks_joined_in_any_order_write_what_the_compute_stream_reads_eager_captured_and_replayed() {
    let toy = toy();
    let other = SideStream::new(&toy.device, "other");
    for swap in [false, true] {
        let mut manager = toy.manager(GraphOptions { poison: true, ..GraphOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let (a, b) = (cx.tensor("a", [WIDTH], DType::F32)?, cx.tensor("b", [WIDTH], DType::F32)?);
                let mut forks: Vec<Fork> = vec![
                    cx.fork(&toy.side, [Fill { output: a, value: 1.0 }.into()])?,
                    cx.fork(&other, [Fill { output: b, value: 2.0 }.into()])?,
                ];
                if swap {
                    forks.reverse();
                }
                forks.into_iter().try_for_each(|fork| cx.join(fork))?;
                cx.run(Add { a, b, output: toy.sum })
            })
        };
        for seed in 0..4 {
            toy.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut step).unwrap();
            assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![3.0; WIDTH]);
        }
    }
}

#[test]
fn a_fork_of_nothing_captures_nothing() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let fork = cx.fork(&toy.side, [])?;
            cx.run(Fill { output: toy.sum, value: 1.0 })?;
            cx.join(fork)
        })
    };
    (0..3).for_each(|_| manager.step(Mode::Train, 1, &mut step).unwrap());
    assert!(manager.report().to_string().contains("1 graph, 1 node"), "{}", manager.report());
}

#[test]
fn what_a_side_stream_shares_with_the_compute_stream_within_a_region_is_scratch() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        for layer in 0..LAYERS {
            cx.region(Region::Forward { layer, microbatch: 0 }, (), |cx, ()| {
                let shared = cx.tensor("shared", [WIDTH], DType::F32)?;
                let fork = cx.fork(&toy.side, [Fill { output: shared, value: 1.0 }.into()])?;
                cx.join(fork)?;
                cx.run(Copy { input: shared, output: toy.sum })
            })?;
        }
        Ok(())
    };
    manager.step(Mode::Train, 1, &mut step).unwrap();
    let memory = manager.memory();
    assert_eq!(memory.len(), 1, "{memory:?}");
    assert!(memory[0].area.contains("scratch"), "{memory:?}");
}

#[test]
fn what_a_region_keeps_while_others_run_inside_it_is_not_their_scratch() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions { poison: true, ..GraphOptions::default() });
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Step, (), |cx, ()| {
            let outer = cx.tensor("outer", [WIDTH], DType::F32)?;
            cx.run(Fill { output: outer, value: 1.0 })?;
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let inner = cx.tensor("inner", [WIDTH], DType::F32)?;
                cx.run(Fill { output: inner, value: 2.0 })?;
                cx.run(Copy { input: inner, output: toy.inputs.at(0) })
            })?;
            cx.run(Copy { input: outer, output: toy.sum })
        })
    };
    for _ in 0..4 {
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![1.0; WIDTH]);
    }
}

#[test]
fn a_replay_with_more_fewer_or_other_inputs_than_at_capture_is_refused() {
    let toy = toy();
    let whole = Some(toy.inputs.at(0));
    let part = Some(toy.inputs.at(0).view(0, [WIDTH / 2]));
    for (at_capture, then) in [(None, whole), (whole, None), (whole, part)] {
        let mut manager = toy.manager(GraphOptions::default());
        let mut step = |input: Option<Tensor>| {
            manager.step(Mode::Train, 1, &mut |cx: &mut StepContext<'_>| {
                cx.region(Region::Forward { layer: 0, microbatch: 0 }, input, |cx, _| {
                    cx.run(Fill { output: toy.sum, value: 1.0 })
                })
            })
        };
        (0..3).for_each(|_| step(at_capture).unwrap());
        let error = step(then).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }) && error.to_string().contains("than at capture"), "{error}");
    }
}

#[test]
fn a_join_of_one_side_stream_frees_nothing_that_another_reads() {
    let toy = toy();
    let other = SideStream::new(&toy.device, "other");
    let mut manager = toy.manager(GraphOptions { poison: true, ..GraphOptions::default() });
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let sent = cx.tensor("sent", [WIDTH], DType::F32)?;
            cx.run(Fill { output: sent, value: 3.0 })?;
            let first = cx.fork(&toy.side, [Copy { input: sent, output: toy.sum }.into()])?;
            let second = cx.fork(&other, [Fill { output: toy.inputs.at(1), value: 2.0 }.into()])?;
            cx.join(second)?;
            let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
            cx.run(Fill { output: scratch, value: 5.0 })?;
            cx.join(first)
        })
    };
    for seed in 0..8 {
        toy.device.shuffle_replays(Some(seed));
        manager.step(Mode::Train, 1, &mut step).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![3.0; WIDTH]);
    }
}

#[test]
fn a_buffer_of_a_side_stream_lives_from_the_fork() {
    for through in [false, true] {
        let toy = toy();
        let (one, two) = (toy.device.stream("one"), toy.device.stream("two"));
        let [fork, middle, join, join_one] = [(); 4].map(|()| toy.device.event());
        let mut manager = toy.manager(GraphOptions { poison: true, ..GraphOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let read = cx.tensor("read", [WIDTH], DType::F32)?;
                cx.run(Fill { output: read, value: 3.0 })?;
                let of = |source| Error::Device { region: "test".into(), source };
                cx.compute().record(&fork).map_err(of)?;
                one.wait(&fork).map_err(of)?;
                cx.run(Copy { input: read, output: toy.sum })?;
                let writer = if through {
                    one.record(&middle).map_err(of)?;
                    two.wait(&middle).map_err(of)?;
                    &two
                } else {
                    &one
                };
                let written = cx.tensor("written", [WIDTH], DType::F32)?;
                writer.submit(Fill { output: written, value: 5.0 }).map_err(of)?;
                writer.record(&join).map_err(of)?;
                one.record(&join_one).map_err(of)?;
                cx.compute().wait(&join).map_err(of)?;
                cx.compute().wait(&join_one).map_err(of)?;
                cx.run(Copy { input: written, output: toy.inputs.at(1) })
            })
        };
        for seed in 0..8 {
            toy.device.shuffle_replays(Some(seed));
            manager.step(Mode::Train, 1, &mut step).unwrap();
            assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![3.0; WIDTH]);
        }
    }
}

#[test]
fn more_microbatches_in_flight_than_slots_are_refused() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    manager.step(Mode::Train, 1, &mut |cx| toy.step(cx, 0)).unwrap();
    let error = manager.step(Mode::Train, 4, &mut |cx| toy.step(cx, 3)).unwrap_err().to_string();
    assert!(error.contains("4 microbatches are in flight at once"), "{error}");
}

#[test]
fn the_barrier_comes_once_before_the_first_capture() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let count = Rc::new(std::cell::Cell::new(0));
    let counted = count.clone();
    manager.before_capture(move || {
        counted.set(counted.get() + 1);
        Ok(())
    });
    let mut counts = Vec::new();
    for _ in 0..4 {
        manager.step(Mode::Train, 2, &mut |cx| toy.step(cx, 0)).unwrap();
        counts.push(count.get());
    }
    assert_eq!(counts, [0, 1, 1, 1]);
}

#[test]
fn a_region_that_fails_while_it_is_captured_leaves_the_stream_free() {
    let toy = toy();
    let mut manager = toy.manager(GraphOptions::default());
    let mut fails = false;
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.run(Fill { output: toy.sum, value: 1.0 })?;
            if fails { Err(Error::Usage { problem: "made to fail".into(), fix: "none" }) } else { Ok(()) }
        })
    };
    manager.step(Mode::Train, 1, &mut step).unwrap();
    fails = true;
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.run(Fill { output: toy.sum, value: 1.0 })?;
            if fails { Err(Error::Usage { problem: "made to fail".into(), fix: "none" }) } else { Ok(()) }
        })
    };
    assert!(manager.step(Mode::Train, 1, &mut step).unwrap_err().to_string().contains("made to fail"));
    assert_eq!(toy.device.download::<f32>(&toy.sum).unwrap(), vec![1.0; WIDTH]);
}
