//! Work that a graph would not have: it runs while a region warms up and is captured, and no replay repeats it.

use std::cell::RefCell;
use std::num::NonZeroUsize;

use device::ops::{Add, Copy, Fill};
use device::{Area, DType, Device, Graph, Stream, Tensor};
use graph_manager::{ByHand, Capture, CaptureAll, CudaGraphManager, Error, ManagerOptions, Pool, Result, StepContext};

use crate::toy::{Mode, Region, checked_device, toy};

type All = CaptureAll<&'static str>;
type Manager = CudaGraphManager<All>;

struct Bench {
    device: Device,
    compute: Stream,
    other: Stream,
    x: Tensor,
    y: Tensor,
    one: Tensor,
    _areas: Vec<Area>,
}

fn bench() -> Bench {
    let device = checked_device();
    let mut areas = Vec::new();
    let mut tensor = |name: &str| device.allocate_tensor(&mut areas, name, [4], DType::F32).unwrap();
    let (x, y, one) = (tensor("x"), tensor("y"), tensor("one"));
    [x, y, one].iter().for_each(|tensor| device.upload(tensor, &[1.0_f32; 4]).unwrap());
    let (compute, other) = (device.stream("compute"), device.stream("other"));
    Bench { device, compute, other, x, y, one, _areas: areas }
}

impl Bench {
    fn manager(&self, enable: bool) -> Manager {
        let options = ManagerOptions { enable, ..ManagerOptions::default() };
        Manager::new(self.compute.clone(), options, CaptureAll::default()).unwrap()
    }

    /// `x += 1`.
    fn count(&self) -> Add {
        Add { a: self.x, b: self.one, output: self.x }
    }

    /// A graph that counts.
    fn graph(&self) -> Graph {
        self.compute.begin_capture().unwrap();
        self.compute.submit(self.count()).unwrap();
        self.compute.end_capture("counting").unwrap()
    }

    fn values(&self) -> [f32; 2] {
        [self.x, self.y].map(|tensor| self.device.download::<f32>(&tensor).unwrap()[0])
    }
}

/// The error of a manager's first step with one captured region that runs this code.
fn refused(bench: &Bench, code: impl Fn(&mut StepContext<'_, All>) -> Result<()>) -> (String, &'static str, String) {
    let mut manager = bench.manager(true);
    let before = bench.values();
    let result = manager.step("step", 1, &mut |cx| {
        cx.region("work", (), |cx, ()| {
            cx.run(Fill { output: bench.y, value: 5.0 })?;
            code(cx)
        })
    });
    let error = result.unwrap_err();
    assert_eq!(bench.values(), before, "refused before any work: {error}");
    let text = error.to_string();
    assert!(text.contains("a replay would leave it out") && text.contains("Fix: use StepContext::fork"), "{text}");
    let Error::LeftOut { region, operation, stream } = error else { panic!("{error}") };
    (region, operation, stream)
}

#[test]
fn work_of_a_captured_region_on_a_stream_it_did_not_fork_is_refused_before_anything_runs() {
    let bench = bench();
    let left_out = |operation| ("work".to_string(), operation, "other".to_string());
    let other = &bench.other;
    assert_eq!(refused(&bench, |_| Ok(other.submit(bench.count())?)), left_out("add"));
    assert_eq!(refused(&bench, |_| Ok(other.submit(Fill { output: bench.x, value: 0.0 })?)), left_out("fill"));
    assert_eq!(refused(&bench, |_| Ok(other.submit(Copy { input: bench.y, output: bench.x })?)), left_out("copy"));
    let graph = bench.graph();
    assert_eq!(refused(&bench, |_| Ok(graph.launch(other)?)), left_out("add"));
    // In a region inside the captured one too.
    let inner = |cx: &mut StepContext<'_, All>| cx.region("inner", (), |_, ()| Ok(other.submit(bench.count())?));
    assert_eq!(refused(&bench, inner), left_out("add"));
}

#[test]
fn a_wait_for_an_event_from_before_the_step_is_refused() {
    let bench = bench();
    let before = bench.device.event();
    bench.compute.record(&before).unwrap();
    for enable in [true, false] {
        let mut manager = bench.manager(enable);
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
    let other = &bench.other;
    let mut manager = bench.manager(true);
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
        let body = move |cx: &mut StepContext<'_, ByHand>, ()| cx.run(count.clone());
        let mut inner = Capture::new(&pool, "inner", 1, NonZeroUsize::MIN, body).unwrap();
        (0..2).for_each(|_| _ = inner.run(()).unwrap());
        inner
    };
    let inner = RefCell::new(make(&bench.other));
    let (region, operation, stream) = refused(&bench, |_| inner.borrow_mut().run(()).map(drop));
    assert_eq!((&*region, operation, &*stream), ("work", "add", "other"));
    // On the region's stream each step counts.
    let mut inner = make(&bench.compute);
    bench.device.upload(&bench.x, &[1.0_f32; 4]).unwrap();
    let mut manager = bench.manager(true);
    for step in 1..=8 {
        manager.step("step", 1, &mut |cx| cx.region("work", (), |_, ()| inner.run(()).map(drop))).unwrap();
        assert_eq!(bench.values()[0], (1 + step) as f32);
    }
}

#[test]
fn a_stream_forked_by_an_event_within_the_region_takes_part_in_every_replay() {
    let bench = bench();
    let mut manager = bench.manager(true);
    let (fork, join) = (bench.device.event(), bench.device.event());
    for step in 1..=6 {
        let result = manager.step("step", 1, &mut |cx| {
            cx.region("work", (), |cx, ()| {
                cx.run(Fill { output: bench.y, value: 5.0 })?;
                cx.compute().record(&fork)?;
                bench.other.wait(&fork)?;
                bench.other.submit(bench.count())?;
                bench.other.record(&join)?;
                Ok(cx.compute().wait(&join)?)
            })
        });
        result.unwrap();
        assert_eq!(bench.values()[0], (1 + step) as f32);
    }
    assert_eq!(manager.report().nodes(), 2);
}

#[test]
fn eager_regions_may_use_any_stream() {
    let bench = bench();
    let mut manager = bench.manager(false);
    for step in 1..=4 {
        let work = &mut |cx: &mut StepContext<'_, All>| {
            cx.region("work", (), |_, ()| Ok(bench.other.submit(bench.count())?))
        };
        manager.step("step", 1, work).unwrap();
        assert_eq!(bench.values(), [(1 + step) as f32, 1.0]);
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
