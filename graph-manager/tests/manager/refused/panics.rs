//! A caller catches a panic in the code of a step: the next step works as if there had been none.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use device::DType;
use device::ops::Add;
use graph_manager::{ManagerOptions, Result, Verification, Verified};

use crate::named::{Bench, Manager, Named, StepContext, bench, compared, fill};

/// A step that may panic.
struct Panicking {
    bench: Bench,
    /// How often the code of the region ran.
    runs: Cell<usize>,
    /// The number of the run that panics.
    panics: Cell<Option<usize>>,
}

fn panicking(run: usize) -> Panicking {
    Panicking { bench: bench(), runs: Cell::new(0), panics: Cell::new(Some(run)) }
}

impl Panicking {
    /// Adds 3 to `x`, by way of a side stream.
    fn step(&self, cx: &mut StepContext<'_>) -> Result<()> {
        let x = self.bench.x;
        cx.region("outer", (), |cx, ()| {
            let three = cx.region("make", (), |cx, ()| {
                let three = cx.tensor("three", [4], DType::F32)?;
                cx.run(fill(three, 3.0))?;
                Ok(three)
            })?;
            let side = cx.side_stream().clone();
            let fork = cx.fork(&side, [Add { a: x, b: three, output: x }.into()])?;
            self.runs.set(self.runs.get() + 1);
            assert!(self.panics.get() != Some(self.runs.get()), "the user's code panics");
            cx.join(fork)
        })
    }
}

#[test]
fn a_step_whose_code_panicked_leaves_the_manager_ready_for_the_next() {
    // The first run of the code makes the list, the others check it.
    for run in 1..=3 {
        let code = panicking(run);
        let bench = &code.bench;
        let mut manager = Manager::in_pool(&bench.pool, compared(), Named).unwrap();
        let mut caught = 0;
        for step in 0..8 {
            bench.device.zero(&bench.x).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| manager.step("step", 1, &mut |cx| code.step(cx))));
            assert!(!bench.device.is_tracing() && !bench.compute.is_capturing());
            assert_eq!(&*bench.device.scope(), "");
            match result {
                Ok(result) => {
                    result.unwrap();
                    assert_eq!(bench.value(bench.x), 3.0, "step {step}, panic in run {run}");
                }
                Err(_) => caught += 1,
            }
        }
        assert_eq!((caught, manager.report().graphs.len()), (1, 1));
        // Others that share the pool go on too.
        let mut other = Manager::in_pool(&bench.pool, ManagerOptions::default(), Named).unwrap();
        other.step("step", 1, &mut |cx| code.step(cx)).unwrap();
    }
}

#[test]
fn a_panic_that_is_caught_within_the_step_ends_the_step_with_an_error() {
    let code = panicking(1);
    let mut manager = code.bench.manager(ManagerOptions::default());
    let mut step = |cx: &mut StepContext<'_>| {
        let _ = catch_unwind(AssertUnwindSafe(|| code.step(cx)));
        Ok(())
    };
    let error = manager.step("step", 1, &mut step).unwrap_err().to_string();
    assert_eq!(error, "outer: it ended with a panic, and the step went on. Fix: catch the panic around the whole step");
    for _ in 0..4 {
        manager.step("step", 1, &mut step).unwrap();
    }
    assert_eq!(code.bench.value(code.bench.x), 12.0);
}

#[test]
fn a_panic_in_a_host_call_leaves_the_manager_ready_for_the_next_step_and_a_verification_puts_the_state_back() {
    let bench = bench();
    let mut manager = bench.manager(ManagerOptions::default());
    let panics = Rc::new(Cell::new(false));
    let (call, x) = (panics.clone(), bench.x);
    let mut step = |cx: &mut StepContext<'_>| {
        let panics = call.clone();
        cx.region("eager", (), |cx, ()| {
            cx.region("inner", (), |cx, ()| {
                let three = cx.tensor("three", [4], DType::F32)?;
                cx.run(fill(three, 3.0))?;
                cx.run(Add { a: x, b: three, output: x })
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
    assert_eq!(bench.value(x), 9.0);
    assert!(catch_unwind(AssertUnwindSafe(|| manager.step("step", 1, &mut step))).is_err());
    assert!(!bench.compute.is_capturing() && bench.device.scope().is_empty());
    panics.set(false);
    let before = bench.value(x);
    assert!(matches!(manager.verify("step", 1, &Verification::default(), &mut step), Ok(Verified::Same { .. })));
    manager.step("step", 1, &mut step).unwrap();
    assert_eq!(bench.value(x), before + 3.0);
}
