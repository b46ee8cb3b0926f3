//! Mistakes that the manager refuses, with the region and the fix.

use device::DType;
use device::ops::{Copy, Fill};
use graph_manager::{Error, ManagerOptions, Mempool, Result};

use crate::toy::{Mode, Region, StepContext, ToyPolicy, WIDTH, assert_refused, toy, toy_with};

/// A call, and code that makes it.
type Case<'a> = (&'a str, &'a dyn Fn(&mut StepContext<'_>) -> Result<()>);

#[test]
fn code_that_allocates_waits_or_reads_is_refused_when_the_step_is_recorded_with_its_region_and_runs_nothing() {
    let toy = toy();
    let sums = toy.sums;
    let read = |cx: &mut StepContext<'_>| Ok(cx.compute().read::<f32>(&sums)?.wait().map(drop)?);
    let cases: [Case<'_>; 6] = [
        ("Stream::write of `sums`", &|cx| Ok(cx.compute().write(&sums, &vec![1.0_f32; sums.elements()])?)),
        ("Stream::read of `sums`", &|cx| Ok(cx.compute().read::<f32>(&sums).map(drop)?)),
        ("Device::allocate of `sneaky`, 64 bytes,", &|_| Ok(toy.device.allocate("sneaky", 64).map(drop)?)),
        ("Stream::synchronize of stream `compute`", &|cx| Ok(cx.compute().synchronize()?)),
        ("Device::download of `sums`", &|_| Ok(toy.device.download::<f32>(&sums).map(drop)?)),
        ("Readback::wait for `sums`, which was read", &read),
    ];
    toy.device.zero(&sums).unwrap();
    for (call, code) in cases {
        for enable in [true, false] {
            let mut manager = toy.manager(ManagerOptions { enable, ..ManagerOptions::default() });
            let step = manager.step(Mode::Train, 1, &mut |cx| {
                cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                    cx.run(Fill { output: sums, value: 5.0 })?;
                    code(cx)
                })
            });
            let text = step.unwrap_err().to_string();
            let start = format!("forward of layer 0, microbatch 0: {call} while a step is recorded. Rule: ");
            assert!(text.starts_with(&start) && text.contains("Fix: "), "{text}");
            assert!(toy.device.download::<f32>(&sums).unwrap().iter().all(|sum| *sum == 0.0));
        }
    }
}

#[test]
fn a_buffer_taken_outside_of_a_region_is_refused() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| cx.tensor("lost", [1], DType::F32).map(|_| ());
    let error = manager.step(Mode::Train, 1, &mut step).unwrap_err().to_string();
    assert!(error.contains("`lost`") && error.contains("StepContext::region"), "{error}");
}

#[test]
fn more_microbatches_in_flight_than_slots_are_refused() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    toy.train(&mut manager, 1, 0).unwrap();
    assert_refused(toy.train(&mut manager, 4, 3), "4 microbatches are in flight at once");
}

#[test]
fn code_that_fails_while_it_is_recorded_leaves_the_manager_ready_for_the_next_step() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let mut step = |fails: bool| {
        manager.step(Mode::Train, 1, &mut |cx: &mut StepContext<'_>| {
            cx.region(Region::Forward { layer: 0, microbatch: 0 }, (), |cx, ()| {
                cx.run(Fill { output: toy.sum(), value: 1.0 })?;
                if fails { Err(Error::Usage { problem: "made to fail".into(), fix: "none" }) } else { Ok(()) }
            })
        })
    };
    assert!(step(true).unwrap_err().to_string().contains("made to fail"));
    assert!(!toy.device.is_tracing());
    (0..3).for_each(|_| step(false).unwrap());
    assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap(), vec![1.0; WIDTH]);
}

/// The error of recording a step of one microbatch with the code `body`.
fn refused(body: impl Fn(&mut StepContext<'_>) -> Result<()>) -> String {
    let toy = toy_with(ToyPolicy { splits_backward: true, ..ToyPolicy::default() });
    let mut manager = toy.manager(ManagerOptions::default());
    let error = manager.record(Mode::Train, 1, &mut |cx| body(cx)).unwrap_err();
    assert!(matches!(error, Error::Usage { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_region_that_comes_twice_in_a_step_is_refused() {
    let error = refused(|cx| {
        cx.region(Region::Begin, (), |_, ()| Ok(()))?;
        cx.region(Region::Begin, (), |_, ()| Ok(()))
    });
    assert!(error.contains("`begin` comes twice in a step"), "{error}");
}

#[test]
fn a_microbatch_that_the_step_does_not_have_is_refused() {
    let error = refused(|cx| cx.region(Region::Inputs { microbatch: 1 }, (), |_, ()| Ok(())));
    assert!(error.contains("`inputs of microbatch 1` is of microbatch 1") && error.contains("step of 1"), "{error}");
}

#[test]
fn a_buffer_in_a_shared_slot_that_outlives_its_microbatch_is_refused() {
    for (mempool, refused) in [(Mempool::PerMicrobatch, true), (Mempool::Single, false)] {
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions { mempool, ..ManagerOptions::default() });
        let result = manager.record(Mode::Train, 2, &mut |cx| {
            let mut made = Vec::new();
            for microbatch in 0..2 {
                made.push(cx.region(Region::Forward { layer: 0, microbatch }, (), |cx, ()| {
                    let y = cx.tensor("y", [WIDTH], DType::F32)?;
                    cx.run(Fill { output: y, value: microbatch as f32 })?;
                    Ok(y)
                })?);
            }
            // By now the second microbatch has overwritten the first one's slot.
            cx.region(Region::Optimizer, made[0], |cx, y| cx.run(Copy { input: y, output: toy.sum() }))
        });
        assert_eq!(result.is_err(), refused, "{mempool:?}");
        let Err(error) = result else { continue };
        let error = error.to_string();
        assert!(error.contains("`y` of `forward of layer 0, microbatch 0` is used after"), "{error}");
    }
}
