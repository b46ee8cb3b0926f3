//! Code that would now make another list than the recorded one. If steps are compared, it is refused. Otherwise the
//! recorded list runs.

use std::cell::Cell;
use std::rc::Rc;

use device::cuda::{CudaWork, GpuProperties};
use device::ops::{Accesses, Copy, CustomOp, Fill, Poison};
use device::{CheckError, DType, HostTensors, Tensor};
use graph_manager::{CheckReplays, Error, ManagerOptions, Result};

use crate::named::{Bench, StepContext, bench, compared, copy, fill};
use crate::toy::{Mode, Region, WIDTH, assert_refused, toy};

/// Runs steps with a captured region that calls `code` with the number of the step, counted from 0. Returns the number
/// and the error of the first step that fails.
fn first_failure(
    options: &ManagerOptions,
    code: impl Fn(&Bench, &mut StepContext<'_>, usize) -> Result<()>,
) -> Option<(usize, Error)> {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions { check_replays: CheckReplays::Always, ..options.clone() });
    let mut step = |number| manager.step("step", 1, &mut |cx| cx.region("work", (), |cx, ()| code(&bench, cx, number)));
    (0..5).find_map(|number| step(number).err().map(|error| (number, error)))
}

/// The error of the third step, the first replay. The code does `first` in the steps before it, and `then` in it.
fn refused(
    first: impl Fn(&Bench, &mut StepContext<'_>) -> Result<()>,
    then: impl Fn(&Bench, &mut StepContext<'_>) -> Result<()>,
) -> String {
    let code = |bench: &Bench, cx: &mut StepContext<'_>, number: usize| {
        if number < 2 { first(bench, cx) } else { then(bench, cx) }
    };
    let (number, error) = first_failure(&ManagerOptions::default(), code).unwrap();
    assert_eq!(number, 2, "{error}");
    assert!(matches!(&error, Error::Frozen { region, .. } if region == "work"), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("Rule: a step repeats the list that its code made once. Fix: "), "{text}");
    text
}

#[test]
fn a_host_value_that_changed_is_named_with_operation_and_field() {
    let text = refused(|b, cx| cx.run(fill(b.x, 1.0)), |b, cx| cx.run(fill(b.x, 2.0)));
    assert!(text.contains("operation 0, `fill`: `value` was 1.0 when recorded and is now 2.0"), "{text}");
    // The second step repeats the list, with graphs and without.
    for (enable, warmup_steps) in [(true, 1), (true, 3), (false, 1)] {
        let options = ManagerOptions { enable, warmup_steps, ..ManagerOptions::default() };
        let (number, error) =
            first_failure(&options, |bench, cx, number| cx.run(fill(bench.x, number as f32))).unwrap();
        assert_eq!(number, 1, "{error}");
    }
}

#[test]
fn a_branch_that_changed_is_named() {
    let text = refused(|b, cx| cx.run(fill(b.x, 1.0)), |b, cx| cx.run(Poison { output: b.x }));
    assert!(text.contains("operation 0 was `fill` when recorded, the code now submits `poison`"), "{text}");
    let text =
        refused(|b, cx| cx.run(fill(b.x, 1.0)), |b, cx| cx.run(fill(b.x, 1.0)).and_then(|()| cx.run(fill(b.x, 1.0))));
    assert!(text.contains("it had 1 operation when recorded, the code now submits 2"), "{text}");
}

#[test]
fn an_operation_on_another_stream_or_without_its_wait_is_named() {
    let aside = |b: &Bench, cx: &mut StepContext<'_>| {
        let side = cx.side_stream().clone();
        cx.fork(&side, [fill(b.x, 1.0).into()])?.leave();
        Ok(())
    };
    let text = refused(|b, cx| cx.run(fill(b.x, 1.0)), aside);
    assert!(text.contains("operation 0, `fill`: it is on another stream or waits for others"), "{text}");
    let forks = |b: &Bench, cx: &mut StepContext<'_>, joins: bool| {
        let side = cx.side_stream().clone();
        let fork = cx.fork(&side, [fill(b.x, 1.0).into()])?;
        if joins {
            cx.join(fork)?
        } else {
            fork.leave()
        }
        cx.run(fill(b.y, 1.0))
    };
    let text = refused(|b, cx| forks(b, cx, true), |b, cx| forks(b, cx, false));
    assert!(text.contains("before operation 1 the code now waits for others"), "{text}");
}

#[test]
fn a_buffer_that_changes_size_is_named() {
    let grows = |elements: usize| {
        move |bench: &Bench, cx: &mut StepContext<'_>| {
            let grows = cx.tensor("grows", [elements], DType::F32)?;
            cx.run(fill(grows, 1.0))?;
            cx.run(copy(grows.narrow(0, 4), bench.x))
        }
    };
    let text = refused(grows(9), grows(10));
    let words = "work: it took `grows` of 36 bytes when recorded, the code now takes `grows` of 40 bytes";
    assert!(text.starts_with(words), "{text}");
    let takes = |more: bool| {
        move |_: &Bench, cx: &mut StepContext<'_>| {
            let own = cx.tensor("own", [4], DType::F32)?;
            cx.run(fill(own, 1.0))?;
            if more { cx.tensor("more", [2], DType::F32).map(drop) } else { Ok(()) }
        }
    };
    let text = refused(takes(false), takes(true));
    assert!(text.contains("it took no more when recorded, the code now takes `more` of 8 bytes"), "{text}");
    let text = refused(takes(true), takes(false));
    assert!(text.contains("it took `more` of 8 bytes when recorded, the code now takes no more"), "{text}");
}

#[test]
fn another_order_of_regions_names_what_was_expected_and_what_came() {
    let toy = toy();
    let mut manager = toy.manager(compared());
    for _ in 0..3 {
        toy.train(&mut manager, 2, 0).unwrap();
    }
    let error = toy.train(&mut manager, 2, 1).unwrap_err();
    let Error::Device { source: device::Error::Check(CheckError::OutOfOrder { .. }), .. } = &error else {
        panic!("{error:?}")
    };
    let expected = "expects `backward of layer 2, microbatch 0`, got `inputs of microbatch 1`";
    assert!(error.to_string().contains("replay out of order") && error.to_string().contains(expected), "{error}");
    // The next step is as before.
    let sums = toy.device.download::<f32>(&toy.sums).unwrap();
    toy.train(&mut manager, 2, 0).unwrap();
    assert_eq!(toy.device.download::<f32>(&toy.sums).unwrap(), sums);
}

#[test]
fn a_step_that_ends_early_is_out_of_order_too() {
    let toy = toy();
    let mut manager = toy.manager(compared());
    toy.train(&mut manager, 2, 0).unwrap();
    let mut half = |cx: &mut crate::toy::StepContext<'_>| cx.region(Region::Step, (), |_, ()| Ok(()));
    assert_refused(manager.step(Mode::Train, 2, &mut half), "expects `begin`, got `the end of the step`");
}

#[test]
fn without_checks_the_list_runs_whatever_the_code_has_become() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions { check_replays: CheckReplays::Never, ..ManagerOptions::default() });
    for number in 0..5 {
        let step = manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| cx.run(fill(bench.x, number as f32 + 7.0)))?;
            if number == 0 {
                cx.region("more", (), |cx, ()| cx.run(copy(bench.x, bench.y)))
            } else {
                panic!("not called")
            }
        });
        step.unwrap();
        assert_eq!([bench.value(bench.x), bench.value(bench.y)], [7.0; 2]);
    }
}

#[test]
fn an_input_that_moved_after_the_list_was_made_is_refused_with_its_old_and_new_address() {
    for share_io_buffers in [true, false] {
        for check_replays in [CheckReplays::Always, CheckReplays::Once] {
            let toy = toy();
            let options = ManagerOptions { share_io_buffers, check_replays, ..ManagerOptions::default() };
            let mut manager = toy.manager(options);
            let mut step = |row: usize| -> Result<Vec<f32>> {
                let output = manager.step(Mode::Evaluate, 1, &mut |cx| {
                    cx.region(Region::Forward { layer: 0, microbatch: 0 }, toy.inputs.at(row), |cx, input| {
                        let y = cx.tensor("y", [WIDTH], DType::F32)?;
                        cx.run(Copy { input, output: y })?;
                        Ok(y)
                    })
                })?;
                Ok(toy.device.download(&output)?)
            };
            (0..3).for_each(|_| drop(step(0).unwrap()));
            let moved = step(5);
            if check_replays == CheckReplays::Always {
                let [was, is] = [0, 5].map(|row| toy.inputs.at(row).address);
                let error = moved.unwrap_err().to_string();
                let words = format!("operation 0, `copy`: `address` was {was} when recorded and is now {is}");
                assert!(error.starts_with("forward of layer 0, microbatch 0") && error.contains(&words), "{error}");
            } else {
                assert_eq!(
                    moved.unwrap(),
                    toy.device.download::<f32>(&toy.inputs.at(0)).unwrap(),
                    "the list has row 0"
                );
            }
        }
    }
}

#[test]
fn a_region_with_more_fewer_or_other_inputs_is_refused_where_it_copies_or_uses_them() {
    let toy = toy();
    let whole = Some(toy.inputs.at(0));
    let part = Some(toy.inputs.at(0).view(0, [WIDTH / 2]));
    for share_io_buffers in [true, false] {
        for (first, then) in [(None, whole), (whole, None), (whole, part)] {
            let options =
                ManagerOptions { share_io_buffers, check_replays: CheckReplays::Always, ..ManagerOptions::default() };
            let mut manager = toy.manager(options);
            let mut step = |input: Option<Tensor>| {
                manager.step(Mode::Train, 1, &mut |cx: &mut crate::toy::StepContext<'_>| {
                    cx.region(Region::Forward { layer: 0, microbatch: 0 }, input, |cx, input| {
                        cx.run(Fill { output: toy.sum(), value: 1.0 })?;
                        let sum = |input: Tensor| toy.sums.at(1).view(0, [input.elements()]);
                        // A copy of its own copy of the input.
                        input.map_or(Ok(()), |input| cx.run(Copy { input, output: sum(input) }))
                    })
                })
            };
            (0..3).for_each(|_| step(first).unwrap());
            let error = step(then).unwrap_err();
            assert!(matches!(error, Error::Frozen { .. }), "{error:?}");
        }
    }
}

#[test]
fn code_that_fails_or_allocates_where_it_is_called_again_runs_nothing_and_the_next_step_works() {
    let bench = bench();
    let (fails, allocates) = (Cell::new(false), Cell::new(false));
    let mut manager = bench.manager(compared());
    let mut step = || {
        manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| {
                cx.run(bench.count())?;
                if allocates.get() {
                    bench.device.allocate("sneaky", 64)?;
                }
                if fails.get() { Err(Error::Usage { problem: "made to fail".into(), fix: "none" }) } else { Ok(()) }
            })
        })
    };
    // Before the capture, and before a replay.
    for count in [1.0, 2.0] {
        step().unwrap();
        fails.set(true);
        assert!(step().unwrap_err().to_string().contains("made to fail"));
        fails.set(false);
        allocates.set(true);
        let text = step().unwrap_err().to_string();
        assert!(text.starts_with("work: Device::allocate of `sneaky`, 64 bytes, while a step is recorded"), "{text}");
        allocates.set(false);
        assert_eq!(bench.value(bench.x), count);
        assert!(!bench.device.is_tracing());
    }
    step().unwrap();
    assert_eq!(bench.value(bench.x), 3.0);
}

/// An operation without an effect. It is refused when it is submitted while `refused` is set.
#[derive(Debug)]
struct Refused {
    refused: Rc<Cell<bool>>,
    output: Tensor,
}

impl CustomOp for Refused {
    fn name(&self) -> &'static str {
        "refused"
    }

    fn check(&self) -> device::Result<()> {
        if self.refused.get() { Err(device::Error::operation("refused", "made to fail")) } else { Ok(()) }
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.output], [self.output])
    }

    fn run_host(&self, _: &mut HostTensors<'_>) -> device::Result<()> {
        Ok(())
    }

    fn cuda_work(&self, _: &GpuProperties) -> Option<CudaWork<'_>> {
        Some(CudaWork::call(|_| Ok(())))
    }
}

#[test]
fn an_operation_that_fails_while_a_region_is_captured_leaves_the_stream_free() {
    let (bench, refused) = (bench(), Rc::new(Cell::new(false)));
    let side = graph_manager::SideStream::new(&bench.device, "beside");
    let mut manager = bench.manager(ManagerOptions::default());
    let mut step = || {
        manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| {
                cx.fork(&side, [fill(bench.y, 1.0).into()])?.leave();
                cx.run(Refused { refused: refused.clone(), output: bench.z })?;
                cx.run(bench.count())
            })
        })
    };
    step().unwrap();
    refused.set(true);
    let text = step().unwrap_err().to_string();
    assert!(text.starts_with("work: refused: made to fail"), "{text}");
    assert!(!bench.compute.is_capturing());
    assert_eq!([bench.value(bench.x), bench.value(bench.y)], [1.0; 2]);
    refused.set(false);
    (0..3).for_each(|_| step().unwrap());
    assert_eq!(bench.value(bench.x), 4.0);
    assert_eq!(manager.report().nodes(), 3);
}

#[test]
fn comparing_steps_uses_up_no_numbers_of_buffers() {
    let bench = bench();
    let mut manager = bench.manager(compared());
    let mut step = || {
        let body = &mut |cx: &mut StepContext<'_>| {
            cx.region("work", (), |cx, ()| {
                let own = cx.tensor("own", [4], DType::F32)?;
                cx.run(fill(own, 1.0))?;
                cx.run(copy(own, bench.y))
            })
        };
        manager.step("step", 1, body).unwrap();
        bench.device.buffers_made()
    };
    let first = step();
    assert_eq!([(); 5].map(|()| step()), [first; 5]);
    assert_eq!(manager.compared_replays(), 5);
}
