//! Work on side streams: forks, joins, and the memory they use.

use device::DType;
use device::ops::{Add, Copy, Fill};
use graph_manager::{Error, Fork, ManagerOptions, Mempool, SideStream};

use crate::toy::{LAYERS, Mode, Region, StepContext, WIDTH, toy};

#[test]
fn a_side_stream_left_open_in_a_region_is_joined_at_the_end_of_its_graph_and_of_the_step() {
    let toy = toy();
    for enable in [true, false] {
        let mut manager = toy.manager(ManagerOptions { enable, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let _never_joined = cx.fork(&toy.side, [Fill { output: toy.sum(), value: 1.0 }.into()])?;
                Ok(())
            })
        };
        for _ in 0..4 {
            manager.step(Mode::Train, 1, &mut step).unwrap();
            // Without an order the checker would find a race.
            toy.compute.submit(Fill { output: toy.sum(), value: 2.0 }).unwrap();
        }
        assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap(), vec![2.0; WIDTH]);
    }
}

#[test]
fn memory_a_side_stream_works_on_is_not_reused_before_the_join() {
    let toy = toy();
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            let saved = cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let sent = cx.tensor("sent", [WIDTH], DType::F32)?;
                cx.run(Fill { output: sent, value: 3.0 })?;
                let fork = cx.fork(&toy.side, [Copy { input: sent, output: toy.sum() }.into()])?;
                // Were `sent` thought dead after its submission, these would take its memory and race with the copy.
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                let saved = cx.tensor("saved", [WIDTH], DType::F32)?;
                cx.run(Fill { output: scratch, value: 5.0 })?;
                cx.run(Fill { output: saved, value: 4.0 })?;
                cx.join(fork)?;
                Ok(saved)
            })?;
            cx.region(Region::Forward { layer: 1, microbatch: 0 }, saved, |cx, saved| {
                cx.run(Copy { input: saved, output: toy.inputs.at(0) })
            })
        };
        toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
    }
}

#[test]
fn scratch_of_a_region_is_not_poisoned_where_regions_inside_it_work_on_side_streams() {
    let toy = toy();
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        // A graph copies its input to scratch. Nothing reads the copy, so the regions inside have its bytes.
        let options = ManagerOptions { mempool, share_io_buffers: false, poison: true, ..ManagerOptions::default() };
        let mut manager = toy.manager(options);
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, toy.inputs.at(0), |cx, _| {
                cx.region(Region::Forward { layer: 1, microbatch: 0 }, (), |cx, ()| {
                    let sent = cx.tensor("sent", [WIDTH], DType::F32)?;
                    cx.run(Fill { output: sent, value: 3.0 })?;
                    let fork = cx.fork(&toy.side, [Copy { input: sent, output: toy.sum() }.into()])?;
                    cx.join(fork)
                })
            })
        };
        toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
    }
}

#[test]
fn two_forks_joined_in_any_order_write_what_the_compute_stream_reads_eager_captured_and_replayed() {
    let toy = toy();
    let other = SideStream::new(&toy.device, "other");
    for swap in [false, true] {
        let mut manager = toy.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
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
                cx.run(Add { a, b, output: toy.sum() })
            })
        };
        toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
    }
}

#[test]
fn work_that_is_left_under_way_is_waited_for_by_what_reads_it_and_at_a_later_join() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let (a, b) = (cx.tensor("a", [WIDTH], DType::F32)?, cx.tensor("b", [WIDTH], DType::F32)?);
            let c = cx.tensor("c", [WIDTH], DType::F32)?;
            cx.fork(&toy.side, [Fill { output: a, value: 1.0 }.into()])?.leave();
            cx.fork(&toy.side, [Fill { output: b, value: 2.0 }.into()])?.leave();
            cx.run(Copy { input: a, output: c })?;
            cx.join(cx.fork(&toy.side, [Fill { output: a, value: 4.0 }.into()])?)?;
            cx.run(Add { a: b, b: c, output: toy.sum() })
        })
    };
    toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
    let graph = &manager.report().graphs[0];
    let copy = graph.nodes.iter().position(|node| node.ends_with("/copy")).unwrap();
    assert_eq!(graph.dependencies[copy], [0], "the copy waits for the first fill alone: {:?}", graph.nodes);
}

#[test]
fn a_fork_of_nothing_captures_nothing() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let fork = cx.fork(&toy.side, [])?;
            cx.run(Fill { output: toy.sum(), value: 1.0 })?;
            cx.join(fork)
        })
    };
    (0..3).for_each(|_| manager.step(Mode::Train, 1, &mut step).unwrap());
    assert!(manager.report().to_string().contains("1 graph, 1 node"), "{}", manager.report());
}

#[test]
fn what_a_side_stream_shares_with_the_compute_stream_within_a_region_is_scratch() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        for layer in 0..LAYERS {
            cx.region(Region::Forward { layer, microbatch: 0 }, (), |cx, ()| {
                let shared = cx.tensor("shared", [WIDTH], DType::F32)?;
                let fork = cx.fork(&toy.side, [Fill { output: shared, value: 1.0 }.into()])?;
                cx.join(fork)?;
                cx.run(Copy { input: shared, output: toy.sum() })
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
fn a_join_of_one_side_stream_frees_nothing_that_another_reads() {
    let toy = toy();
    let other = SideStream::new(&toy.device, "other");
    let mut manager = toy.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
    let mut step = |cx: &mut StepContext<'_>| {
        cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            let sent = cx.tensor("sent", [WIDTH], DType::F32)?;
            cx.run(Fill { output: sent, value: 3.0 })?;
            let first = cx.fork(&toy.side, [Copy { input: sent, output: toy.sum() }.into()])?;
            let second = cx.fork(&other, [Fill { output: toy.inputs.at(1), value: 2.0 }.into()])?;
            cx.join(second)?;
            let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
            cx.run(Fill { output: scratch, value: 5.0 })?;
            cx.join(first)
        })
    };
    toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
}

#[test]
fn a_buffer_of_a_side_stream_lives_from_the_fork() {
    // On the stream that forked; on one that waits for it; and if that one has since waited for later work.
    for (through, waits_later) in [(false, false), (true, false), (true, true)] {
        let toy = toy();
        let (one, two) = (toy.device.stream("one"), toy.device.stream("two"));
        let [fork, later, middle, join, join_one] = [(); 5].map(|()| toy.device.event());
        let mut manager = toy.manager(ManagerOptions { poison: true, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                let read = cx.tensor("read", [WIDTH], DType::F32)?;
                cx.run(Fill { output: read, value: 3.0 })?;
                let of = |source| Error::Device { region: "test".into(), source };
                cx.compute().record(&fork).map_err(of)?;
                one.wait(&fork).map_err(of)?;
                one.record(&middle).map_err(of)?;
                cx.run(Copy { input: read, output: toy.sum() })?;
                if waits_later {
                    cx.compute().record(&later).map_err(of)?;
                    one.wait(&later).map_err(of)?;
                }
                let writer = if through {
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
        toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
    }
}

/// Bytes of a step with a stream next to the compute stream. A third stream may wait for it. Three buffers that several
/// regions use follow each other: on the compute stream, on the side stream, and on the compute stream again.
fn bytes_with(known: Known) -> usize {
    let toy = toy();
    let (one, two) = (toy.device.stream("one"), toy.device.stream("two"));
    let [early, old, fork, done, through, rest] = [(); 6].map(|()| toy.device.event());
    let options = ManagerOptions { enable: false, mempool: Mempool::Single, ..ManagerOptions::default() };
    let mut manager = toy.manager(options);
    let of = |source| Error::Device { region: "test".into(), source };
    let mut step = |cx: &mut StepContext<'_>| {
        let forward = |layer| Region::Forward { layer, microbatch: 0 };
        let backward = |layer| Region::Backward { layer, microbatch: 0 };
        let before = cx.region(forward(0), (), |cx, ()| {
            cx.compute().record(&early).map_err(of)?;
            two.wait(&early).map_err(of)?;
            two.record(&old).map_err(of)?;
            let before = cx.tensor("before", [WIDTH], DType::F32)?;
            cx.run(Fill { output: before, value: 3.0 })?;
            Ok(before)
        })?;
        let aside = cx.region(forward(1), before, |cx, before| {
            cx.run(Copy { input: before, output: toy.sum() })?;
            cx.compute().record(&fork).map_err(of)?;
            one.wait(&fork).map_err(of)?;
            if known == Known::AfterAnOlderEvent {
                one.wait(&old).map_err(of)?;
            }
            let aside = cx.tensor("aside", [WIDTH], DType::F32)?;
            one.submit(Fill { output: aside, value: 5.0 }).map_err(of)?;
            Ok(aside)
        })?;
        cx.region(forward(2), aside, |cx, aside| {
            one.submit(Copy { input: aside, output: toy.inputs.at(1) }).map_err(of)?;
            one.record(&done).map_err(of)?;
            if known == Known::ThroughAnother {
                two.wait(&done).map_err(of)?;
                two.record(&through).map_err(of)?;
                cx.compute().wait(&through).map_err(of)
            } else {
                cx.compute().wait(&done).map_err(of)
            }
        })?;
        let after = cx.region(backward(2), (), |cx, ()| {
            let after = cx.tensor("after", [WIDTH], DType::F32)?;
            cx.run(Fill { output: after, value: 7.0 })?;
            Ok(after)
        })?;
        cx.region(backward(1), after, |cx, after| {
            cx.run(Copy { input: after, output: toy.inputs.at(0) })?;
            two.record(&rest).map_err(of)?;
            cx.compute().wait(&rest).map_err(of)
        })
    };
    for _ in 0..3 {
        manager.step(Mode::Train, 1, &mut step).unwrap();
        let values = |tensor| toy.device.download::<f32>(tensor).unwrap()[0];
        assert_eq!([values(&toy.sum()), values(&toy.inputs.at(1)), values(&toy.inputs.at(0))], [3.0, 5.0, 7.0]);
    }
    manager.memory().iter().map(|area| area.bytes).sum()
}

/// How the compute stream knows that a side stream's work is done.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Itself,
    /// It waits for a stream that waited for it.
    ThroughAnother,
    /// Itself; and the work waited for an event before its fork, too.
    AfterAnOlderEvent,
}

#[test]
fn a_buffer_of_a_side_stream_is_free_once_the_compute_stream_knows_its_work_done() {
    let itself = bytes_with(Known::Itself);
    assert_eq!(itself, WIDTH * size_of::<f32>(), "one buffer's");
    for known in [Known::ThroughAnother, Known::AfterAnOlderEvent] {
        assert_eq!(bytes_with(known), itself, "{known:?}");
    }
}
