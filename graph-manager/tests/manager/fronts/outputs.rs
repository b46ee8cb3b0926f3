//! The result of a step: the result of its code, with tensors at their addresses in the step.

use std::cell::Cell;

use device::ops::Add;
use device::{DType, Tensor};
use graph_manager::{CheckReplays, Error, ManagerOptions, Mempool, Result};

use crate::named::{Bench, StepContext, bench, copy, fill};
use crate::toy::{Mode, Region, toy};

/// Counts. Returns the count, a buffer with its last use early in the step, and `None`.
fn step(bench: &Bench, cx: &mut StepContext<'_>) -> Result<(Tensor, Vec<Tensor>, Option<Tensor>)> {
    let twice = cx.region("count", (), |cx, ()| {
        let twice = cx.tensor("twice", [4], DType::F32)?;
        cx.run(bench.count())?;
        cx.run(Add { a: bench.x, b: bench.x, output: twice })?;
        Ok(twice)
    })?;
    // Were `twice` thought dead, one of these would take its memory.
    let last = cx.region("later", (), |cx, ()| {
        let (scratch, last) = (cx.tensor("scratch", [4], DType::F32)?, cx.tensor("last", [4], DType::F32)?);
        cx.run(fill(scratch, -1.0))?;
        cx.run(copy(scratch, last))?;
        Ok(last)
    })?;
    cx.region("last", last, |cx, last| cx.run(copy(last, bench.y)))?;
    Ok((bench.x, vec![twice, twice.narrow(0, 2)], None))
}

#[test]
fn a_step_returns_tensors_at_their_addresses_where_their_values_stay_until_the_next_step() {
    for (enable, mempool, share_io_buffers) in
        [(false, Mempool::Single, true), (true, Mempool::Single, true), (true, Mempool::PerMicrobatch, false)]
    {
        let bench = bench();
        let options = ManagerOptions { enable, mempool, share_io_buffers, poison: true, ..ManagerOptions::default() };
        let mut manager = bench.manager(options);
        let mut addresses = Vec::new();
        for number in 1..=5 {
            let (x, twice, none) = manager.step("step", 1, &mut |cx| step(&bench, cx)).unwrap();
            assert_eq!((x, none), (bench.x, None));
            assert_eq!(
                [bench.value(x), bench.value(twice[0]), bench.value(bench.y)],
                [number as f32, 2.0 * number as f32, -1.0]
            );
            assert_eq!((bench.value(twice[1]), twice[1].address), (2.0 * number as f32, twice[0].address));
            addresses.push(twice[0].address);
        }
        assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
    }
}

#[test]
fn the_code_of_a_step_is_called_once_and_again_only_to_compare() {
    for check_replays in [CheckReplays::Never, CheckReplays::Once, CheckReplays::Always] {
        let (bench, calls) = (bench(), Cell::new(0));
        let mut manager = bench.manager(ManagerOptions { check_replays, warmup_steps: 2, ..ManagerOptions::default() });
        let body = &mut |cx: &mut StepContext<'_>| {
            calls.set(calls.get() + 1);
            step(&bench, cx)
        };
        manager.record("step", 1, body).unwrap();
        let counts = [(); 5].map(|()| {
            manager.step("step", 1, body).unwrap();
            calls.get()
        });
        let (called, compared) = match check_replays {
            CheckReplays::Never => ([1; 5], 0),
            // Before the list runs again.
            CheckReplays::Once => ([1, 2, 2, 2, 2], 0),
            // Also before each step with graphs.
            CheckReplays::Always => ([1, 2, 3, 4, 5], 3),
        };
        assert_eq!((counts, manager.compared_replays()), (called, 3 * compared));
        manager.reset().unwrap();
        let (x, ..) = manager.step("step", 1, body).unwrap();
        assert_eq!(calls.get(), counts[4] + 1, "after a reset it begins anew");
        assert_eq!(bench.value(x), 6.0);
    }
}

#[test]
fn a_step_that_returns_another_type_than_its_list_was_made_with_is_refused() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions::default());
    manager.record("step", 1, &mut |cx| step(&bench, cx)).unwrap();
    let error = manager.step("step", 1, &mut |cx| step(&bench, cx).map(|_| ())).unwrap_err();
    assert!(matches!(error, Error::Usage { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("a step was recorded with another output type than ()."), "{text}");
}

#[test]
fn a_microbatch_s_buffer_is_returned_unless_another_microbatch_has_its_slot() {
    for (mempool, ahead, refused) in
        [(Mempool::PerMicrobatch, false, true), (Mempool::PerMicrobatch, true, false), (Mempool::Single, false, false)]
    {
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut body = |cx: &mut crate::toy::StepContext<'_>| {
            let mut made = Vec::new();
            for microbatch in 0..2 {
                made.push(cx.region(Region::Forward { layer: 0, microbatch }, (), |cx, ()| {
                    let y = cx.tensor("y", [4], DType::F32)?;
                    cx.run(fill(y, microbatch as f32))?;
                    Ok(y)
                })?);
            }
            if ahead {
                // Both are in flight at once.
                for microbatch in 0..2 {
                    cx.region(Region::Backward { layer: 0, microbatch }, (), |_, ()| Ok(()))?;
                }
            }
            Ok(made)
        };
        for _ in 0..4 {
            let step = manager.step(Mode::Train, 2, &mut body);
            assert_eq!(step.is_err(), refused, "{mempool:?}");
            match step {
                Ok(made) => {
                    let values = made.iter().map(|made| toy.device.download::<f32>(made).unwrap()[0]);
                    assert_eq!(values.collect::<Vec<_>>(), [0.0, 1.0]);
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("`y` of `forward of layer 0, microbatch 0` is used after"), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_buffer_that_one_number_of_microbatches_returns_and_the_planned_one_does_not_is_refused() {
    for (mempool, refused) in [(Mempool::PerMicrobatch, true), (Mempool::Single, false)] {
        let toy = toy();
        let mut manager = toy.manager(ManagerOptions { mempool, poison: true, ..ManagerOptions::default() });
        let mut step = |microbatches: usize| {
            manager.step(Mode::Train, microbatches, &mut |cx| {
                let forward = |cx: &mut crate::toy::StepContext<'_>, microbatch| {
                    cx.region(Region::Forward { layer: 0, microbatch }, (), |cx, ()| {
                        let y = cx.tensor("y", [4], DType::F32)?;
                        cx.run(fill(y, microbatch as f32 + 1.0))?;
                        Ok(y)
                    })
                };
                let made = (0..microbatches).map(|microbatch| forward(cx, microbatch)).collect::<Result<Vec<_>>>()?;
                for (microbatch, y) in made.iter().enumerate() {
                    cx.region(Region::Backward { layer: 0, microbatch }, *y, |cx, y| {
                        // Were `y` thought dead from here on, the gradients would take its memory.
                        let grads = [cx.tensor("a", [4], DType::F32)?, cx.tensor("b", [4], DType::F32)?];
                        cx.run(copy(y, grads[0]))?;
                        cx.run(copy(grads[0], grads[1]))
                    })?;
                }
                // The first microbatch is in slot 0 if it is alone, else in slot 1.
                Ok(made[0])
            })
        };
        let made = step(2).unwrap();
        assert_eq!(toy.device.download::<f32>(&made).unwrap(), [1.0; 4]);
        let alone = step(1);
        assert_eq!(alone.is_err(), refused, "{mempool:?}");
        match alone {
            Ok(made) => assert_eq!(toy.device.download::<f32>(&made).unwrap(), [1.0; 4]),
            Err(error) => {
                let words = "forward of layer 0, microbatch 0: buffer `y` is kept to the end of the step, and was not when \
                             memory was planned";
                assert!(error.to_string().starts_with(words), "{error}");
            }
        }
    }
}
