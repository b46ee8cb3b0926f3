//! A caller catches a panic in the code of a step: the next step works as if there had been none.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use device::ops::{Add, Fill};
use device::{Area, DType, Device, Stream, Tensor};
use graph_manager::{
    CaptureAll, CheckReplays, CudaGraphManager, ManagerOptions, Policy, Pool, Result, StepContext, Verification,
    Verified,
};

use crate::toy::checked_device;

type All = CaptureAll<&'static str>;

struct Bench {
    device: Device,
    compute: Stream,
    total: Tensor,
    /// How often the code of the region ran.
    runs: Cell<usize>,
    /// The number of the run that panics.
    panics: Cell<Option<usize>>,
    _areas: Vec<Area>,
}

fn bench() -> Bench {
    let device = checked_device();
    let mut areas = Vec::new();
    let total = device.allocate_tensor(&mut areas, "total", [4], DType::F32).unwrap();
    device.zero(&total).unwrap();
    Bench {
        compute: device.stream("compute"),
        device,
        total,
        runs: Cell::new(0),
        panics: Cell::new(None),
        _areas: areas,
    }
}

impl Bench {
    /// Adds 3 to the total, by way of a side stream.
    fn step(&self, cx: &mut StepContext<'_, All>) -> Result<()> {
        cx.region("outer", (), |cx, ()| {
            let three = cx.region("make", (), |cx, ()| {
                let three = cx.tensor("three", [4], DType::F32)?;
                cx.run(Fill { output: three, value: 3.0 })?;
                Ok(three)
            })?;
            let side = cx.side_stream().clone();
            let fork = cx.fork(&side, [Add { a: self.total, b: three, output: self.total }.into()])?;
            self.runs.set(self.runs.get() + 1);
            assert!(self.panics.get() != Some(self.runs.get()), "the user's code panics");
            cx.join(fork)
        })
    }

    fn total(&self) -> f32 {
        self.device.download::<f32>(&self.total).unwrap()[0]
    }
}

#[test]
fn a_step_whose_code_panicked_leaves_the_manager_ready_for_the_next() {
    // The first run of the code makes the list, the others check it.
    for run in 1..=3 {
        let bench = bench();
        let pool = Pool::new(bench.compute.clone());
        let options = ManagerOptions { check_replays: CheckReplays::Always, ..ManagerOptions::default() };
        let mut manager = CudaGraphManager::in_pool(&pool, options, All::default()).unwrap();
        bench.panics.set(Some(run));
        let mut caught = 0;
        for step in 0..8 {
            bench.device.zero(&bench.total).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| manager.step("step", 1, &mut |cx| bench.step(cx))));
            assert!(!bench.device.is_tracing() && !bench.compute.is_capturing());
            assert_eq!(&*bench.device.scope(), "");
            match result {
                Ok(result) => {
                    result.unwrap();
                    assert_eq!(bench.total(), 3.0, "step {step}, panic in run {run}");
                }
                Err(_) => caught += 1,
            }
        }
        assert_eq!((caught, manager.report().graphs.len()), (1, 1));
        // Others that share the pool go on too.
        let mut other = CudaGraphManager::in_pool(&pool, ManagerOptions::default(), All::default()).unwrap();
        other.step("step", 1, &mut |cx| bench.step(cx)).unwrap();
    }
}

#[test]
fn a_panic_that_is_caught_within_the_step_ends_the_step_with_an_error() {
    let bench = bench();
    let mut manager = CudaGraphManager::new(bench.compute.clone(), ManagerOptions::default(), All::default()).unwrap();
    bench.panics.set(Some(1));
    let mut step = |cx: &mut StepContext<'_, All>| {
        let _ = catch_unwind(AssertUnwindSafe(|| bench.step(cx)));
        Ok(())
    };
    let error = manager.step("step", 1, &mut step).unwrap_err().to_string();
    assert_eq!(error, "outer: it ended with a panic, and the step went on. Fix: catch the panic around the whole step");
    for _ in 0..4 {
        manager.step("step", 1, &mut step).unwrap();
    }
    assert_eq!(bench.total(), 12.0);
}

#[test]
fn a_panic_in_a_host_call_leaves_the_manager_ready_for_the_next_step_and_a_verification_puts_the_state_back() {
    let bench = bench();
    let options = ManagerOptions::default();
    let mut manager = CudaGraphManager::new(bench.compute.clone(), options, OnlyInner).unwrap();
    let panics = Rc::new(Cell::new(false));
    let call = panics.clone();
    let mut step = |cx: &mut StepContext<'_, OnlyInner>| {
        let panics = call.clone();
        let (total, three) = (bench.total, [4]);
        cx.region("outer", (), |cx, ()| {
            cx.region("inner", (), |cx, ()| {
                let three = cx.tensor("three", three, DType::F32)?;
                cx.run(Fill { output: three, value: 3.0 })?;
                cx.run(Add { a: total, b: three, output: total })
            })?;
            cx.host_call("panics", (), (), move |_, (), ()| {
                assert!(!panics.get(), "the user's code panics");
                Ok(())
            })
        })
    };
    for _ in 0..3 {
        manager.step("step", 1, &mut step).unwrap();
    }
    panics.set(true);
    let verified = catch_unwind(AssertUnwindSafe(|| manager.verify("step", 1, &Verification::default(), &mut step)));
    assert!(verified.is_err());
    assert_eq!(bench.total(), 9.0);
    assert!(catch_unwind(AssertUnwindSafe(|| manager.step("step", 1, &mut step))).is_err());
    assert!(!bench.compute.is_capturing() && bench.device.scope().is_empty());
    panics.set(false);
    let before = bench.total();
    assert!(matches!(manager.verify("step", 1, &Verification::default(), &mut step), Ok(Verified::Same { .. })));
    manager.step("step", 1, &mut step).unwrap();
    assert_eq!(bench.total(), before + 3.0);
}

/// `inner` becomes a graph.
struct OnlyInner;

impl Policy for OnlyInner {
    type Region = &'static str;
    type Mode = &'static str;

    fn captured(&self, region: &'static str) -> std::result::Result<(), &'static str> {
        if region == "inner" { Ok(()) } else { Err("it calls the host") }
    }
}
