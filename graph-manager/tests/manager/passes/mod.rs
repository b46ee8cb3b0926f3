//! Passes: operations on other queues, at other places, and in later regions; and mistakes of passes that are refused.

mod early;
mod handover;
mod moves;

use std::rc::Rc;

use device::ops::{Add, Copy, Fill};
use device::{DType, Op};
use graph_manager::{ManagerOptions, Mempool, Piece, PieceEntry, Result, StepPass, Then};

use crate::toy::{Mode, Region, StepContext, Toy, ToyPolicy, WIDTH, assert_refused, toy, toy_with};

/// A pass made of a function.
struct Of<F>(F);

impl<F: FnMut(&mut Piece<Region>)> StepPass<Region> for Of<F> {
    fn name(&self) -> &'static str {
        "test"
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        self.0(piece);
    }
}

fn set(cx: &mut StepContext<'_>, pass: impl FnMut(&mut Piece<Region>) + 'static) {
    cx.set_passes(vec![Box::new(Of(pass))]);
}

/// Puts operations that write the first sum on a queue. A region waits for it at its end if `waits` is true for the
/// region.
fn sums_aside(toy: &Toy, cx: &mut StepContext<'_>, waits: fn(Region) -> bool) {
    let (queue, sum) = (toy.side.clone(), toy.sum());
    set(cx, move |piece| {
        let to_sum = |entry: &&mut PieceEntry| entry.accesses().writes.contains(&sum);
        piece.entries.iter_mut().filter(to_sum).for_each(|entry| entry.put_on(&queue));
        if piece.then() == Then::End && waits(piece.region()) {
            piece.joins.push(queue.clone());
        }
    });
}

fn forward(layer: usize, microbatch: usize) -> Region {
    Region::Forward { layer, microbatch }
}

#[test]
fn what_a_queue_reads_is_kept_until_the_region_ends_and_later_regions_see_what_it_wrote() {
    let toy = toy();
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut step = |cx: &mut StepContext<'_>| {
            sums_aside(&toy, cx, |_| true);
            cx.region(forward(0, 0), (), |cx, ()| {
                let read = cx.tensor("read", [WIDTH], DType::F32)?;
                cx.run(Fill { output: read, value: 3.0 })?;
                cx.run(Copy { input: read, output: toy.sum() })?;
                // Were `read` thought dead, this would take its memory and race with the queue.
                let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
                cx.run(Fill { output: scratch, value: 5.0 })?;
                cx.run(Add { a: toy.sum(), b: read, output: toy.sum() })
            })?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
        };
        toy.assert_gives(&mut manager, &mut step, toy.sums.at(1), 6.0);
    }
}

#[test]
fn what_writes_what_a_queue_reads_waits_for_it() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        sums_aside(&toy, cx, |_| true);
        cx.region(forward(0, 0), (), |cx, ()| {
            cx.run(Fill { output: toy.inputs.at(0), value: 3.0 })?;
            cx.run(Copy { input: toy.inputs.at(0), output: toy.sum() })?;
            cx.run(Fill { output: toy.inputs.at(0), value: 0.0 })
        })
    };
    toy.assert_gives(&mut manager, &mut step, toy.sum(), 3.0);
}

/// Two forwards, with sums that go on past their ends, then a backward.
fn outliving(toy: &Toy, cx: &mut StepContext<'_>) -> Result<()> {
    sums_aside(toy, cx, |region| matches!(region, Region::Backward { .. }));
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(forward(0, 0), (), |cx, ()| {
            let read = cx.tensor("read", [WIDTH], DType::F32)?;
            cx.run(Fill { output: read, value: 3.0 })?;
            cx.run(Copy { input: read, output: toy.sum() })
        })?;
        cx.region(forward(1, 0), (), |cx, ()| {
            // Were `read` thought dead, this would take its memory and race with the queue.
            let scratch = cx.tensor("scratch", [WIDTH], DType::F32)?;
            cx.run(Fill { output: scratch, value: 5.0 })?;
            cx.run(Copy { input: scratch, output: toy.sums.at(2) })?;
            cx.run(Add { a: toy.sum(), b: toy.inputs.at(1), output: toy.sum() })
        })?;
        cx.region(Region::Backward { layer: 0, microbatch: 0 }, (), |cx, ()| {
            cx.run(Fill { output: toy.sums.at(2), value: 7.0 })
        })?;
        cx.region(Region::Optimizer, (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
    })
}

#[test]
fn work_that_goes_on_past_its_region_is_waited_for_where_a_pass_says_so() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        let toy = toy_with(ToyPolicy { whole: true, ..ToyPolicy::default() });
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
        let after = graph.waits_for(&[at("forward of layer 0, microbatch 0/copy")]);
        assert!(after[at("forward of layer 1, microbatch 0/add")], "{:?}", graph.nodes);
        assert!(!after[at("forward of layer 1, microbatch 0/copy")], "{:?}", graph.nodes);
        assert!(!after[at("backward of layer 0, microbatch 0/fill")], "{:?}", graph.nodes);
        assert!(after[at("optimizer/copy")], "{:?}", graph.nodes);
    }
}

#[test]
fn what_reads_what_a_queue_writes_waits_for_it_whatever_the_pass_says() {
    for whole in [true, false] {
        let toy = toy_with(ToyPolicy { whole, ..ToyPolicy::default() });
        let mut manager = toy.manager(ManagerOptions::default());
        let mut step = |cx: &mut StepContext<'_>| {
            sums_aside(&toy, cx, |_| false);
            cx.region(Region::Step, (), |cx, ()| {
                cx.region(forward(0, 0), (), |cx, ()| cx.run(Fill { output: toy.sum(), value: 3.0 }))?;
                cx.region(forward(1, 0), (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) }))
            })
        };
        toy.assert_gives(&mut manager, &mut step, toy.sums.at(1), 3.0);
    }
}

/// A fill of the first sum, a copy of it, and a fill of the third, in a forward; then another forward.
fn three(toy: &Toy, cx: &mut StepContext<'_>) -> Result<()> {
    cx.region(forward(0, 0), (), |cx, ()| {
        cx.run(Fill { output: toy.sum(), value: 3.0 })?;
        cx.run(Copy { input: toy.sum(), output: toy.sums.at(1) })?;
        cx.run(Fill { output: toy.sums.at(2), value: 5.0 })
    })?;
    cx.region(forward(1, 0), (), |cx, ()| cx.run(Fill { output: toy.sums.at(1), value: 7.0 }))
}

/// Whether a piece is of the first region of [`three`].
fn is_first(piece: &Piece<Region>) -> bool {
    piece.region() == forward(0, 0)
}

fn recorded(pass: impl FnMut(&mut Piece<Region>) + Clone + 'static) -> Result<String> {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    manager.record(Mode::Train, 1, &mut |cx| {
        set(cx, pass.clone());
        three(&toy, cx)
    })?;
    Ok(manager.lists())
}

#[test]
fn operations_that_do_not_meet_may_change_places() {
    let text = recorded(|piece| {
        if is_first(piece) {
            piece.entries.swap(1, 2);
        }
    })
    .unwrap();
    let numbers: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).map(|line| line.trim()).collect();
    assert!(numbers[1].starts_with("1 compute fill") && numbers[2].starts_with("2 compute copy"), "{text}");
}

#[test]
fn operations_that_meet_in_memory_must_not_change_places() {
    let refused = recorded(|piece| {
        if is_first(piece) {
            piece.entries.swap(0, 1);
        }
    });
    assert_refused(
        refused,
        "forward of layer 0, microbatch 0: the pass `test` has put `copy` before `fill`, which it comes after, \
                    and the two meet in memory",
    );
}

#[test]
fn an_operation_must_not_be_kept_past_one_that_it_meets() {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    let keep = |at: usize| {
        let kept = kept.clone();
        move |piece: &mut Piece<Region>| match is_first(piece) {
            true => kept.borrow_mut().push(piece.entries.remove(at)),
            false => piece.entries.append(&mut kept.borrow_mut()),
        }
    };
    // The copy and the second region write the same bytes.
    let expected = "forward of layer 1, microbatch 0: the pass `test` has put `fill` before `copy`";
    assert_refused(recorded(keep(1)), expected);
    kept.borrow_mut().clear();
    // In the same piece already.
    let expected = "forward of layer 0, microbatch 0: the pass `test` has put `copy` before `fill`";
    assert_refused(recorded(keep(0)), expected);
    kept.borrow_mut().clear();
    // Nothing meets the last fill.
    let text = recorded(keep(2)).unwrap();
    assert!(text.ends_with("writes sums (64) f32\n") && text.contains("forward of layer 1, microbatch 0\n"), "{text}");
}

#[test]
fn an_operation_that_a_pass_loses_is_named() {
    let refused = recorded(|piece| {
        if is_first(piece) {
            piece.entries.remove(2);
        }
    });
    assert_refused(
        refused,
        "forward of layer 0, microbatch 0: the pass `test` kept `fill`, and the step ends without it",
    );
}

#[test]
fn a_pass_gets_the_piece_as_the_pass_before_left_it() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    manager
        .record(Mode::Train, 1, &mut |cx| {
            let sees = seen.clone();
            let swap = Of(|piece: &mut Piece<Region>| {
                if is_first(piece) {
                    piece.entries.swap(1, 2);
                }
            });
            let look = Of(move |piece: &mut Piece<Region>| {
                let names: Vec<&str> = piece.entries.iter().map(|entry| entry.op().name()).collect();
                sees.borrow_mut().push((piece.region(), piece.then(), names.join(" ")));
            });
            cx.set_passes(vec![Box::new(swap), Box::new(look)]);
            three(&toy, cx)
        })
        .unwrap();
    let expected = [(forward(0, 0), Then::End, "fill fill copy".into()), (forward(1, 0), Then::End, "fill".into())];
    assert_eq!(*seen.borrow(), expected);
}

/// Begins the second region's fill in the first region, at that place. Takes it out of the second one if `takes` says so.
fn ahead(at: usize, takes: bool) -> impl FnMut(&mut Piece<Region>) + Clone {
    let begun = Rc::new(std::cell::RefCell::new(None));
    move |piece| match is_first(piece) {
        true => {
            let output = piece.entries[1].accesses().writes[0];
            let fill = Op::from(Fill { output, value: 7.0 });
            *begun.borrow_mut() = Some(fill.clone());
            piece.entries.insert(at, PieceEntry::ahead(fill));
        }
        false if takes => piece.entries.retain(|entry| begun.borrow().as_ref() != Some(entry.op())),
        false => {}
    }
}

#[test]
fn an_operation_may_begin_before_the_code_submits_it() {
    let text = recorded(ahead(3, true)).unwrap();
    let fills: Vec<&str> = text.lines().filter(|line| line.contains(" fill")).collect();
    assert!(fills.len() == 3 && text.ends_with(&format!("{}\n", fills[2])), "{text}");
    assert!(!text.contains("forward of layer 1"), "{text}");
}

#[test]
fn an_operation_must_not_begin_before_one_that_it_meets() {
    let expected = "forward of layer 0, microbatch 0: the pass `test` has put `fill` before `copy`";
    assert_refused(recorded(ahead(1, true)), expected);
}

#[test]
fn an_operation_that_begins_and_is_not_taken_out_of_its_place_is_refused() {
    // The code's own comes after it, and writes the same bytes.
    assert_refused(recorded(ahead(3, false)), "the pass `test` has put `fill` before `fill`");
    let refused = recorded(|piece| {
        if is_first(piece) {
            let output = piece.entries[2].accesses().writes[0];
            piece.entries.push(PieceEntry::ahead(Fill { output, value: 1.0 }));
        }
    });
    assert_refused(refused, "forward of layer 0, microbatch 0: the pass `test` began `fill` ahead, and it never comes");
}

#[test]
fn work_that_takes_its_place_at_once_must_not_overtake_what_a_pass_keeps() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    type Direct = fn(&Toy, &mut StepContext<'_>) -> Result<()>;
    let fork: Direct = |toy, cx| {
        cx.fork(&toy.side, [Fill { output: toy.sum(), value: 1.0 }.into()])?.leave();
        Ok(())
    };
    let host: Direct = |toy, cx| cx.host_call("look", toy.sum(), (), |_, _, ()| Ok(()));
    for (name, direct) in [("fill", fork), ("look", host)] {
        let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
        let recorded = manager.record(Mode::Train, 1, &mut |cx| {
            let kept = kept.clone();
            set(cx, move |piece| kept.borrow_mut().append(&mut piece.entries));
            cx.region(Region::Inputs { microbatch: 0 }, (), |cx, ()| {
                cx.run(Copy { input: toy.inputs.at(0), output: toy.sum() })?;
                direct(&toy, cx)
            })
        });
        let expected = format!("inputs of microbatch 0: the pass `test` has put `{name}` before `copy`");
        assert_refused(recorded, &expected);
    }
}

#[test]
fn work_on_the_stream_itself_comes_after_what_the_region_has_submitted() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        set(cx, |_| {});
        cx.region(forward(0, 0), (), |cx, ()| {
            cx.run(Fill { output: toy.sum(), value: 3.0 })?;
            cx.compute().submit(Copy { input: toy.sum(), output: toy.sums.at(1) })?;
            cx.run(Fill { output: toy.sum(), value: 5.0 })
        })
    };
    for _ in 0..3 {
        manager.step(Mode::Train, 1, &mut step).unwrap();
        let first = |of: usize| toy.device.download::<f32>(&toy.sums.at(of)).unwrap()[0];
        assert_eq!([first(0), first(1)], [5.0, 3.0]);
    }
}

#[test]
fn work_on_the_stream_that_would_come_before_what_the_region_has_submitted_is_refused() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let step = &mut |cx: &mut StepContext<'_>| {
        set(cx, |_| {});
        cx.region(forward(0, 0), (), |cx, ()| {
            cx.run(Fill { output: toy.sum(), value: 3.0 })?;
            Ok(toy.compute.submit(Copy { input: toy.sum(), output: toy.sums.at(1) })?)
        })
    };
    let error = manager.step(Mode::Train, 1, step).unwrap_err().to_string();
    let expected = "forward of layer 0, microbatch 0: `copy` was submitted to a stream directly, and would come before";
    assert!(error.contains(expected) && error.contains("StepContext::compute"), "{error}");
}

#[test]
fn what_a_failed_region_has_submitted_is_in_no_other_region() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let step = &mut |cx: &mut StepContext<'_>| {
        set(cx, |_| {});
        cx.region(Region::Step, (), |cx, ()| {
            let failed = cx.region(forward(0, 0), (), |cx, ()| -> Result<()> {
                cx.run(Fill { output: toy.sum(), value: 3.0 })?;
                Err(graph_manager::Error::Usage { problem: "made to fail".into(), fix: "none" })
            });
            assert!(failed.is_err());
            cx.run(Fill { output: toy.sums.at(1), value: 5.0 })
        })
    };
    manager.record(Mode::Train, 1, step).unwrap();
    let text = manager.lists();
    assert_eq!(text.matches(" fill").count(), 1, "{text}");
}

#[test]
fn an_early_operation_may_come_again_past_what_reads_its_result_and_not_before_what_it_is_made_from() {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorded = |first_reads_source: bool| {
        kept.borrow_mut().clear();
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions::default());
        let (scale, source, sum) = (toy.sums.at(1), toy.inputs.at(0), toy.sum());
        manager.record(Mode::Train, 1, &mut |cx| {
            let kept = kept.clone();
            set(cx, move |piece| match is_first(piece) {
                true => kept.borrow_mut().append(&mut piece.entries),
                false => piece.entries.append(&mut kept.borrow_mut()),
            });
            cx.region(forward(0, 0), (), |cx, ()| match first_reads_source {
                true => cx.run(Fill { output: source, value: 1.0 }),
                false => cx.run(Copy { input: scale, output: sum }),
            })?;
            cx.region(forward(1, 0), (), |cx, ()| cx.run_early(Copy { input: source, output: scale }))
        })
    };
    recorded(false).unwrap();
    assert_refused(recorded(true), "the pass `test` has put `copy` before `fill`");
}
