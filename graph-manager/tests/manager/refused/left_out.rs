//! Work that a graph would not have: it runs while a region warms up and is captured, and no replay repeats it.

use std::cell::RefCell;
use std::num::NonZeroUsize;

use device::Stream;
use device::ops::{Copy, Fill};
use graph_manager::{ByHand, Capture, Error, ManagerOptions, Pool, Result};

use crate::named::{Bench, StepContext, bench, copy, fill};
use crate::toy::{Mode, Region, toy};

/// The error of a manager's first step with one captured region that runs this code.
fn refused(bench: &Bench, code: impl Fn(&mut StepContext<'_>) -> Result<()>) -> (String, &'static str, String) {
    let mut manager = bench.manager(ManagerOptions::default());
    let values = || [bench.value(bench.x), bench.value(bench.y)];
    let before = values();
    let result = manager.step("step", 1, &mut |cx| {
        cx.region("work", (), |cx, ()| {
            cx.run(fill(bench.y, 5.0))?;
            code(cx)
        })
    });
    let error = result.unwrap_err();
    assert_eq!(values(), before, "refused before any work: {error}");
    let text = error.to_string();
    assert!(text.contains("a replay would leave it out") && text.contains("Fix: use StepContext::fork"), "{text}");
    let Error::LeftOut { region, operation, stream } = error else { panic!("{error}") };
    (region, operation, stream)
}

#[test]
fn work_of_a_captured_region_on_a_stream_it_did_not_fork_is_refused_before_anything_runs() {
    let bench = bench();
    let left_out = |operation| ("work".to_string(), operation, "other".to_string());
    let other = &bench.device.stream("other");
    assert_eq!(refused(&bench, |_| Ok(other.submit(bench.count())?)), left_out("add"));
    assert_eq!(refused(&bench, |_| Ok(other.submit(fill(bench.x, 0.0))?)), left_out("fill"));
    assert_eq!(refused(&bench, |_| Ok(other.submit(copy(bench.y, bench.x))?)), left_out("copy"));
    bench.compute.begin_capture().unwrap();
    bench.compute.submit(bench.count()).unwrap();
    let graph = bench.compute.end_capture("counting").unwrap();
    assert_eq!(refused(&bench, |_| Ok(graph.launch(other)?)), left_out("add"));
    // In a region inside the captured one too.
    let inner = |cx: &mut StepContext<'_>| cx.region("inner", (), |_, ()| Ok(other.submit(bench.count())?));
    assert_eq!(refused(&bench, inner), left_out("add"));
}

#[test]
fn a_wait_for_an_event_from_before_the_step_is_refused() {
    let bench = bench();
    let before = bench.device.event();
    bench.compute.record(&before).unwrap();
    for enable in [true, false] {
        let mut manager = bench.manager(ManagerOptions { enable, ..ManagerOptions::default() });
        let error = manager
            .step("step", 1, &mut |cx| cx.region("work", (), |cx, ()| Ok(cx.compute().wait(&before)?)))
            .unwrap_err();
        let words = "work: stream `compute` waits for an event that the step has not recorded before. Fix: wait before the step";
        assert!(error.to_string().starts_with(words), "{error}");
    }
}

#[test]
fn a_fork_of_an_earlier_region_does_not_include_a_stream() {
    let bench = bench();
    let other = bench.device.stream("other");
    let mut manager = bench.manager(ManagerOptions::default());
    let (fork, join) = (bench.device.event(), bench.device.event());
    let error = manager.step("step", 1, &mut |cx| {
        cx.region("forks", (), |cx, ()| {
            cx.compute().record(&fork)?;
            other.wait(&fork)?;
            other.submit(bench.count())?;
            other.record(&join)?;
            Ok(cx.compute().wait(&join)?)
        })?;
        cx.region("does not", (), |_, ()| Ok(other.submit(bench.count())?))
    });
    assert!(matches!(error, Err(Error::LeftOut { region, .. }) if region == "does not"));
}

#[test]
fn a_capture_inside_a_captured_region_whose_pool_has_another_stream_is_refused() {
    let bench = bench();
    let make = |stream: &Stream| {
        let (pool, count) = (Pool::new(stream.clone()), bench.count());
        let body = move |cx: &mut graph_manager::StepContext<'_, ByHand>, ()| cx.run(count.clone());
        let mut inner = Capture::new(&pool, "inner", 1, NonZeroUsize::MIN, body).unwrap();
        (0..2).for_each(|_| _ = inner.run(()).unwrap());
        inner
    };
    let inner = RefCell::new(make(&bench.device.stream("other")));
    let (region, operation, stream) = refused(&bench, |_| inner.borrow_mut().run(()).map(drop));
    assert_eq!((&*region, operation, &*stream), ("work", "add", "other"));
    // On the region's stream each step counts.
    let mut inner = make(&bench.compute);
    bench.device.zero(&bench.x).unwrap();
    let mut manager = bench.manager(ManagerOptions::default());
    for step in 1..=8 {
        manager.step("step", 1, &mut |cx| cx.region("work", (), |_, ()| inner.run(()).map(drop))).unwrap();
        assert_eq!(bench.value(bench.x), step as f32);
    }
}

#[test]
fn a_stream_forked_by_an_event_within_the_region_takes_part_in_every_replay() {
    let bench = bench();
    let (mut manager, other) = (bench.manager(ManagerOptions::default()), bench.device.stream("other"));
    let (fork, join) = (bench.device.event(), bench.device.event());
    for step in 1..=6 {
        let result = manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| {
                cx.run(fill(bench.y, 5.0))?;
                cx.compute().record(&fork)?;
                other.wait(&fork)?;
                other.submit(bench.count())?;
                other.record(&join)?;
                Ok(cx.compute().wait(&join)?)
            })
        });
        result.unwrap();
        assert_eq!(bench.value(bench.x), step as f32);
    }
    assert_eq!(manager.report().nodes(), 2);
}

#[test]
fn eager_regions_may_use_any_stream() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions { enable: false, ..ManagerOptions::default() });
    let other = bench.device.stream("other");
    for step in 1..=4 {
        let work = &mut |cx: &mut StepContext<'_>| cx.region("work", (), |_, ()| Ok(other.submit(bench.count())?));
        manager.step("step", 1, work).unwrap();
        assert_eq!(bench.value(bench.x), step as f32);
    }
    // Next to captured regions: these wait for the data that they read.
    let toy = toy();
    let other = toy.device.stream("other");
    let mut manager = toy.manager(ManagerOptions::default());
    for _ in 0..4 {
        let step = manager.step(Mode::Train, 2, &mut |cx| {
            let eager = Region::Inputs { microbatch: 0 };
            cx.region(eager, (), |_, ()| Ok(other.submit(Fill { output: toy.sum(), value: 1.0 })?))?;
            cx.region(Region::Optimizer, (), |cx, ()| cx.run(Copy { input: toy.sum(), output: toy.inputs.at(0) }))?;
            let last = Region::Inputs { microbatch: 1 };
            cx.region(last, (), |_, ()| Ok(other.submit(Fill { output: toy.sum(), value: 2.0 })?))
        });
        step.unwrap();
        assert_eq!(toy.device.download::<f32>(&toy.inputs.at(0)).unwrap()[0], 1.0);
        assert_eq!(toy.device.download::<f32>(&toy.sum()).unwrap()[0], 2.0);
    }
    assert_eq!(manager.report().graphs.len(), 1);
}
