//! Operations that the first steps do, and that steps with graphs leave out.

use graph_manager::{ManagerOptions, Result, Verification, Verified};

use crate::named::{Bench, StepContext, bench, compared, copy, fill};

/// Counts the steps that make `x`, next to work that every step does.
fn step(bench: &Bench, cx: &mut StepContext<'_>) -> Result<()> {
    cx.region("work", (), |cx, ()| {
        cx.run_early(bench.count())?;
        cx.run(copy(bench.x, bench.y))
    })?;
    cx.run_early(bench.count())
}

#[test]
fn steps_with_graphs_leave_early_operations_out_and_find_what_they_left() {
    for (enable, warmup_steps) in [(true, 1), (true, 3), (false, 1)] {
        let bench = bench();
        let mut manager = bench.manager(ManagerOptions { enable, warmup_steps, ..ManagerOptions::default() });
        for number in 1..=6 {
            manager.step("step", 1, &mut |cx| step(&bench, cx)).unwrap();
            let eager = if enable { number.min(warmup_steps) } else { number };
            assert_eq!(bench.value(bench.x), 2.0 * eager as f32);
            // The copy comes after the first of the two.
            let copied = if eager == number { 2 * eager - 1 } else { 2 * eager };
            assert_eq!(bench.value(bench.y), copied as f32);
        }
        assert_eq!(manager.report().nodes(), usize::from(enable));
    }
}

#[test]
fn the_first_real_step_does_them_again_after_a_rehearsal() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions::default());
    manager.rehearse("step", 1, &mut |cx| step(&bench, cx), |_| false).unwrap();
    assert_eq!((bench.value(bench.x), manager.report().graphs.len()), (2.0, 1), "the eager run, not that with graphs");
    bench.device.upload(&bench.x, &[0.0_f32; 4]).unwrap();
    for _ in 0..4 {
        manager.step("step", 1, &mut |cx| step(&bench, cx)).unwrap();
        assert_eq!(bench.value(bench.x), 2.0);
    }
}

#[test]
fn a_region_of_early_operations_alone_is_empty_in_steps_with_graphs() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions::default());
    for _ in 0..4 {
        let step = manager.step("step", 1, &mut |cx| {
            cx.region("early", (), |cx, ()| cx.run_early(bench.count()))?;
            cx.region("work", (), |cx, ()| cx.run(copy(bench.x, bench.y)))
        });
        step.unwrap();
        assert_eq!([bench.value(bench.x), bench.value(bench.y)], [1.0; 2]);
    }
}

#[test]
fn code_that_no_longer_calls_an_operation_early_makes_another_list() {
    let bench = bench();
    let mut manager = bench.manager(compared());
    let mut early = |early: bool| {
        manager.step("step", 1, &mut |cx| {
            cx.region(
                "work",
                (),
                |cx, ()| if early { cx.run_early(fill(bench.y, 1.0)) } else { cx.run(fill(bench.y, 1.0)) },
            )
        })
    };
    (0..3).for_each(|_| early(true).unwrap());
    let error = early(false).unwrap_err().to_string();
    assert!(error.starts_with("work: operation 0, `fill`: only the first steps did it when recorded"), "{error}");
}

#[test]
fn a_verification_does_early_operations_again_and_finds_one_that_steps_with_graphs_miss() {
    let bench = bench();
    let how = Verification::default();
    // Done again, it changes nothing.
    let sound = &mut |cx: &mut StepContext<'_>| {
        cx.region("work", (), |cx, ()| {
            cx.run_early(fill(bench.x, 3.0))?;
            cx.run(copy(bench.x, bench.y))
        })
    };
    let mut manager = bench.manager(ManagerOptions::default());
    (0..3).for_each(|_| manager.step("step", 1, sound).unwrap());
    assert!(matches!(manager.verify("step", 1, &how, sound), Ok(Verified::Same { tensors: 2, .. })));
    // This one counts.
    let mut manager = bench.manager(ManagerOptions::default());
    (0..3).for_each(|_| manager.step("step", 1, &mut |cx| step(&bench, cx)).unwrap());
    let found = manager.verify("step", 1, &how, &mut |cx| step(&bench, cx)).unwrap();
    let Verified::Differs(difference) = found else { panic!("{found:?}") };
    assert!(difference.to_string().starts_with("work: `"), "{difference}");
}
