//! Mistakes that other systems take in silence.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use device::ops::{Add, Control, Fill, Rule, Status, Update};
use device::{DType, Device, HostOptions};
use graph_manager::{CheckReplays, Error, ManagerOptions, Mempool};

use crate::named::{Bench, bench, fill};
use crate::toy::{Mode, ToyPolicy, assert_refused, toy, toy_with};

#[test]
fn checking_replays_changes_no_bit_and_finds_nothing_in_a_sound_step() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        for (whole, splits_backward) in [(false, false), (false, true), (true, false)] {
            let run = |check_replays| {
                let toy = toy_with(ToyPolicy { whole, splits_backward, ..ToyPolicy::default() });
                toy.run(ManagerOptions { mempool, check_replays, ..ManagerOptions::default() }, 4, 1)
            };
            assert_eq!(run(CheckReplays::Always), run(CheckReplays::Never));
        }
    }
}

#[test]
fn an_error_that_a_region_passes_up_names_the_region() {
    let bench = bench();
    let (x, other) = (bench.x, bench.device.stream("other"));
    let mut manager = bench.manager(ManagerOptions::default());
    let error = manager.step("step", 1, &mut |cx| {
        cx.region("outer", (), |cx, ()| {
            cx.region("work", (), |_, ()| {
                // Not through the context, so the device knows no region.
                Ok(other.submit(Add { a: x, b: x, output: x.at(0) })?)
            })
        })
    });
    assert!(error.unwrap_err().to_string().starts_with("work: add: "));
}

#[test]
fn a_region_that_submits_nothing_has_no_graph() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions::default());
    for _ in 0..3 {
        let step = manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| cx.run(fill(bench.x, 1.0)))?;
            cx.region("nothing", (), |_, ()| Ok(()))
        });
        step.unwrap();
    }
    let report = manager.report();
    assert_eq!((report.graphs.len(), manager.expected_graphs("step")), (1, 1));
    assert!(report.to_string().contains("nothing (it submits nothing)"), "{report}");
}

#[test]
fn an_update_without_clip_scale_before_it_is_refused_while_it_is_recorded() {
    let (bench, mut areas) = (bench(), Vec::new());
    let mut manager = bench.manager(ManagerOptions::default());
    let control = bench.device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8).unwrap();
    let status = bench.device.allocate_tensor(&mut areas, "status", [size_of::<Status>()], DType::U8).unwrap();
    let rule = Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let update = Update { rule, tensors: Default::default(), control, status };
    let error = manager.step("step", 1, &mut |cx| cx.region("update", (), |cx, ()| cx.run(update.clone())));
    assert_refused(error, "update: adamw: no clip_scale comes before it");
}

#[test]
fn the_default_control_block_scales_gradients_by_one() {
    let control = Control::default();
    assert_eq!((control.grad_scale, control.inverse_loss_scale, control.microbatches), (1.0, 1.0, 1));
}

#[test]
fn a_reset_gives_memory_back_and_the_next_step_begins_anew() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let before = toy.device.allocated_bytes();
    let mut sums = Vec::new();
    for _ in 0..3 {
        for _ in 0..4 {
            toy.train(&mut manager, 3, 1).unwrap();
            sums.push(toy.device.download::<f32>(&toy.sums).unwrap());
        }
        assert!(toy.device.allocated_bytes() > before && !manager.report().graphs.is_empty());
        manager.reset().unwrap();
        assert_eq!(toy.device.allocated_bytes(), before);
        assert!(manager.report().graphs.is_empty() && manager.memory().is_empty());
    }
    assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_step_that_needs_more_memory_than_was_planned_has_all_graphs_captured_again() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    let barriers = Rc::new(Cell::new(0));
    let counted = barriers.clone();
    manager.before_capture(move || {
        counted.set(counted.get() + 1);
        Ok(())
    });
    let expected = toy.run(ManagerOptions { enable: false, ..ManagerOptions::default() }, 4, 0).remove(0);
    for _ in 0..3 {
        toy.train(&mut manager, 4, 0).unwrap();
    }
    assert_eq!(barriers.get(), 1);
    // A mode of its own with a larger slot.
    let bigger = |manager: &mut crate::toy::Manager| {
        manager.step(Mode::Evaluate, 1, &mut |cx| {
            let region = crate::toy::Region::Forward { layer: 0, microbatch: 0 };
            let big = cx.region(region, (), |cx, ()| {
                let big = cx.tensor("big", [1 << 16], DType::F32)?;
                cx.run(Fill { output: big, value: 1.0 })?;
                Ok(big)
            })?;
            cx.region(crate::toy::Region::Optimizer, big, |cx, big| cx.run(Fill { output: big, value: 2.0 }))
        })
    };
    for _ in 0..3 {
        bigger(&mut manager).unwrap();
        toy.train(&mut manager, 4, 0).unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.sums).unwrap(), expected);
    }
    assert_eq!(barriers.get(), 3, "once more for the step that moved, and once for the new one");
}

#[test]
fn more_kinds_of_steps_than_the_bound_forget_the_oldest_and_bring_it_back() {
    let toy = toy();
    let plan_limit = NonZeroUsize::new(2).unwrap();
    let options = ManagerOptions { mempool: Mempool::Single, plan_limit, ..ManagerOptions::default() };
    let mut manager = toy.manager(options);
    let off = ManagerOptions { enable: false, ..ManagerOptions::default() };
    for microbatches in [1, 2, 3, 1, 2, 3, 3, 3, 1, 1, 1] {
        toy.train(&mut manager, microbatches, 0).unwrap();
        let sums = toy.device.download::<f32>(&toy.sums).unwrap();
        assert_eq!(sums, crate::toy::toy().run(off.clone(), microbatches, 0)[0], "{microbatches} microbatches");
        assert!(manager.report().steps.len() <= 2);
    }
    assert!(manager.is_settled(Mode::Train, 1) && manager.is_settled(Mode::Train, 3));
}

#[test]
fn a_hundred_cycles_of_capture_and_reset_leak_no_memory() {
    let toy = toy();
    let before = toy.device.allocated_bytes();
    let mut after_ten = 0;
    for cycle in 0..100 {
        let mut manager = toy.manager(ManagerOptions::default());
        for _ in 0..3 {
            toy.train(&mut manager, 2, 0).unwrap();
        }
        if cycle % 2 == 0 {
            manager.reset().unwrap();
            assert_eq!(toy.device.allocated_bytes(), before);
        }
        if cycle == 10 {
            after_ten = toy.device.memory_in_use().unwrap();
        }
    }
    assert_eq!(toy.device.allocated_bytes(), before);
    // Names of buffers stay: a few hundred bytes a cycle.
    let grown = toy.device.memory_in_use().unwrap().saturating_sub(after_ten);
    assert!(grown < 2 << 20, "{grown} bytes in 90 cycles, as the driver or the operating system counts");
}

#[test]
fn out_of_memory_says_what_the_other_pool_would_need() {
    let bench = Bench::on(Device::host(HostOptions::default()).unwrap());
    let mut manager = bench.manager(ManagerOptions::default());
    let error = manager.step("step", 1, &mut |cx| {
        let huge = cx.region("make", (), |cx, ()| {
            let huge = cx.tensor("huge", [1 << 40, 1 << 10], DType::F32)?;
            cx.run(Fill { output: huge, value: 0.0 })?;
            Ok(huge)
        })?;
        cx.region("use", huge, |cx, huge| cx.run(Fill { output: huge, value: 1.0 }))
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("step needs 4294967296.0 MiB") && text.contains("with mempool Single"), "{text}");
}
