//! A step that is verified: graphs and eager code from the same state.

use std::cell::Cell;
use std::rc::Rc;

use device::ops::{Accesses, Add, Custom, CustomOp, Fill};
use device::{DType, Device, HostOptions, HostTensors, Tensor};
use graph_manager::{
    CallOrder, Capture, CaptureAll, CudaGraphManager, Difference, EagerMemory, Error, Layer, ManagerOptions, Mempool,
    Policy, Pool, Result, Sameness, StepContext, Verification, VerificationBytes, Verified, graph_callables,
};

use crate::fronts::double::Double;
use crate::toy::{Mode, ToyPolicy, assert_refused, toy, toy_with};

type Manager = CudaGraphManager<CaptureAll<&'static str>>;
type Context<'m> = StepContext<'m, CaptureAll<&'static str>>;

fn both() -> [Verification<'static>; 2] {
    [EagerMemory::Apart, EagerMemory::Shared].map(|memory| Verification { memory, ..Verification::default() })
}

#[test]
fn a_sound_step_is_the_same_both_ways_and_verifying_it_changes_no_bit() {
    for mempool in [Mempool::PerMicrobatch, Mempool::Single] {
        for share_io_buffers in [true, false] {
            for (whole, splits_backward) in [(false, false), (false, true), (true, false), (true, true)] {
                for poison in [true, false] {
                    let toy = || toy_with(ToyPolicy { whole, splits_backward, ..ToyPolicy::default() });
                    let options = ManagerOptions { mempool, share_io_buffers, poison, ..ManagerOptions::default() };
                    let expected = toy().run(options.clone(), 4, 1);
                    let toy = toy();
                    let mut manager = toy.manager(options);
                    for (step, sums) in expected.iter().enumerate() {
                        for how in both() {
                            let found = manager.verify(Mode::Train, 4, &how, &mut |cx| toy.step(cx, 1)).unwrap();
                            // All sums at once, and those of each layer.
                            let same = Verified::Same { tensors: 4, bytes: 2 * toy.sums.bytes() };
                            assert_eq!(found, if step < 2 { Verified::NotYet } else { same });
                        }
                        toy.train(&mut manager, 4, 1).unwrap();
                        assert_eq!(toy.device.download::<f32>(&toy.sums).unwrap(), *sums);
                    }
                }
            }
        }
    }
}

#[test]
fn without_graphs_there_is_nothing_to_verify() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions { enable: false, ..ManagerOptions::default() });
    for _ in 0..4 {
        let found = manager.verify(Mode::Train, 2, &Verification::default(), &mut |cx| toy.step(cx, 1));
        assert_eq!(found.unwrap(), Verified::NotYet);
        toy.train(&mut manager, 2, 1).unwrap();
    }
}

#[test]
fn the_memory_of_a_verification_is_the_state_on_the_host_and_all_buffers_on_the_device() {
    let toy = toy();
    let mut manager = toy.manager(ManagerOptions::default());
    assert_eq!(manager.verification_bytes(Mode::Train, 2), VerificationBytes::default());
    manager.record(Mode::Train, 2, &mut |cx| toy.step(cx, 1)).unwrap();
    // A buffer has 64 floats. Of each microbatch there are an input, and for each of three layers three buffers.
    let device = 2 * (1 + 3 * 3) * 64 * 4;
    let expected = VerificationBytes { host: toy.sums.bytes(), device };
    assert_eq!(manager.verification_bytes(Mode::Train, 2), expected);
}

/// A device without checker, 64 floats on it, and a manager.
struct Small {
    device: Device,
    total: Tensor,
    manager: Manager,
    _areas: Vec<device::Area>,
}

fn small() -> Small {
    let device = Device::host(HostOptions { check: false, ..HostOptions::default() }).unwrap();
    let mut areas = Vec::new();
    let total = device.allocate_tensor(&mut areas, "total", [64], DType::F32).unwrap();
    let manager = Manager::new(device.stream("compute"), ManagerOptions::default(), CaptureAll::default()).unwrap();
    Small { device, total, manager, _areas: areas }
}

impl Small {
    /// The result of a verification after so many steps.
    fn verified_after(
        &mut self,
        steps: usize,
        how: &Verification<'_>,
        mut body: impl FnMut(&mut Context<'_>, Tensor) -> Result<()>,
    ) -> Verified {
        let total = self.total;
        for _ in 0..steps {
            self.manager.step("step", 1, &mut |cx| body(cx, total)).unwrap();
        }
        let before = self.device.download::<f32>(&total).unwrap();
        let found = self.manager.verify("step", 1, how, &mut |cx| body(cx, total)).unwrap();
        assert_eq!(self.device.download::<f32>(&total).unwrap(), before, "the state is put back");
        found
    }
}

fn difference(found: Verified) -> Difference {
    match found {
        Verified::Differs(difference) => *difference,
        other => panic!("no difference: {other:?}"),
    }
}

#[test]
fn a_host_value_that_froze_is_named_with_region_and_values() {
    let rate = Cell::new(1.0_f32);
    let mut small = small();
    let body = |cx: &mut Context<'_>, total: Tensor| {
        let rates = cx.region("first", (), |cx, ()| {
            let rates = cx.tensor("rates", [64], DType::F32)?;
            cx.run(Fill { output: rates, value: rate.get() })?;
            Ok(rates)
        })?;
        cx.region("second", rates, |cx, rates| cx.run(Add { a: total, b: rates, output: total }))
    };
    assert!(matches!(
        small.verified_after(3, &Verification::default(), body),
        Verified::Same { tensors: 1, bytes: 256 }
    ));
    rate.set(1.5);
    let total = small.total;
    let before = small.device.download::<f32>(&total).unwrap();
    let verified = |any: &dyn Fn(bool) -> bool, manager: &mut Manager| {
        let how = Verification { any, ..Verification::default() };
        manager.verify("step", 1, &how, &mut |cx| body(cx, total))
    };
    let error = verified(&|frozen| frozen, &mut small.manager).unwrap_err();
    let words =
        "first: operation 0, `fill`: `value` was 1.0 when recorded and is now 1.5. Rule: a step repeats the list";
    assert!(matches!(error, Error::Frozen { .. }) && error.to_string().starts_with(words), "{error}");
    // Another rank's froze: nothing runs here.
    rate.set(1.0);
    assert_eq!(verified(&|_| true, &mut small.manager), Ok(Verified::NotYet));
    assert_eq!(small.device.download::<f32>(&total).unwrap(), before);
}

/// Writes another value in each run: that of the number of runs before it.
#[derive(Clone, Debug)]
struct Changes {
    runs: Rc<Cell<usize>>,
    value: fn(usize) -> usize,
    output: Tensor,
}

impl CustomOp for Changes {
    fn name(&self) -> &'static str {
        "changes"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([], [self.output])
    }

    fn run_host(&self, tensors: &mut HostTensors<'_>) -> device::Result<()> {
        let runs = self.runs.replace(self.runs.get() + 1);
        tensors.write::<f32>(&self.output)?.fill((self.value)(runs) as f32);
        Ok(())
    }
}

/// The operation. If values alternate, a step with graphs and the same one without never see the same.
fn changes(runs: &Rc<Cell<usize>>, value: fn(usize) -> usize, output: Tensor) -> Custom {
    Custom::new(Rc::new(Changes { runs: runs.clone(), value, output }))
}

#[test]
fn a_difference_is_named_with_region_tensor_and_values() {
    for how in both() {
        let runs = Rc::new(Cell::new(0));
        let mut small = small();
        let body = |cx: &mut Context<'_>, total: Tensor| {
            let x = cx.region("first", (), |cx, ()| {
                let x = cx.tensor("x", [64], DType::F32)?;
                cx.run(Fill { output: x, value: 1.0 })?;
                Ok(x)
            })?;
            let y = cx.region("second", x, |cx, x| {
                let (y, rates) = (cx.tensor("y", [64], DType::F32)?, cx.tensor("rates", [64], DType::F32)?);
                cx.run(Fill { output: rates.narrow(40, 24), value: 0.0 })?;
                cx.run(changes(&runs, |runs| runs % 2, rates.narrow(0, 40)))?;
                cx.run(Add { a: x, b: rates, output: y })?;
                Ok(y)
            })?;
            cx.region("third", y, |cx, y| cx.run(Add { a: total, b: y, output: total }))
        };
        let found = difference(small.verified_after(3, &how, body));
        // The scratch `rates` is still there at the region's end.
        let words = "second: `second/rates` (40 x f32, written by `changes`) has other bits with graphs: 40 elements differ, \
                     the first at index 0: 1.0 with graphs, 0.0 without";
        assert_eq!(found.to_string(), words);
    }
}

#[test]
fn a_buffer_of_a_body_that_does_not_run_is_not_blamed_for_a_difference_after_it() {
    for (how, flag_of_verified) in both().into_iter().zip([0, 0]).chain(both().into_iter().zip([1, 1])) {
        let runs = Rc::new(Cell::new(0));
        let mut small = small();
        let flag = small.device.allocate_tensor(&mut small._areas, "flag", [1], DType::I32).unwrap();
        let body = |cx: &mut Context<'_>, total: Tensor| {
            cx.region("choose", (), |cx, ()| {
                // The body's buffer has its memory afterwards.
                let before = cx.tensor("before", [64], DType::F32)?;
                cx.run(Fill { output: before, value: 3.0 })?;
                cx.run(Add { a: total, b: before, output: total })?;
                cx.when(flag, |body| {
                    let own = body.tensor("own", [64], DType::F32)?;
                    body.run(Fill { output: own, value: 7.0 })?;
                    body.run(Add { a: total, b: own, output: total })
                })
            })?;
            cx.region("differs", (), |cx, ()| {
                let other = cx.tensor("other", [64], DType::F32)?;
                cx.run(changes(&runs, |runs| runs % 2, other))?;
                cx.run(Add { a: total, b: other, output: total })
            })
        };
        small.device.upload(&flag, &[1]).unwrap();
        (0..3).for_each(|_| small.manager.step("step", 1, &mut |cx| body(cx, small.total)).unwrap());
        small.device.upload(&flag, &[flag_of_verified]).unwrap();
        let found = difference(small.verified_after(0, &how, body)).to_string();
        assert!(found.starts_with("differs: `differs/other` (64 x f32, written by `changes`)"), "{found}");
    }
}

/// 1 in the first run, then 2.
fn at_first(runs: usize) -> usize {
    if runs == 0 { 1 } else { 2 }
}

#[test]
fn a_difference_that_does_not_come_back_is_said_to_be_hidden_by_waits() {
    let runs = Rc::new(Cell::new(0));
    let mut small = small();
    let body = |cx: &mut Context<'_>, output: Tensor| {
        cx.region("changes", (), |cx, ()| cx.run(changes(&runs, at_first, output)))
    };
    let how = Verification::default();
    assert!(matches!(small.verified_after(3, &how, body), Verified::Same { .. }));
    runs.set(0);
    let found = difference(small.verified_after(0, &how, body));
    assert!(found.hidden_by_waits && found.values.is_none());
    let words = "changes: `total` (64 x f32, written by `changes`) has other bits with graphs: the difference did not come \
                 back when both steps were run once more. It is gone if the host waits after each region, so regions overlap \
                 that lack an order";
    assert_eq!(found.to_string(), words);
}

#[test]
fn a_rank_without_a_difference_runs_as_often_as_one_with() {
    let runs = Rc::new(Cell::new(0));
    let mut small = small();
    let body = |cx: &mut Context<'_>, output: Tensor| {
        cx.region("changes", (), |cx, ()| cx.run(changes(&runs, at_first, output)))
    };
    for (another, expected) in [(false, 2), (true, 6)] {
        small.verified_after(3, &Verification::default(), body);
        let before = runs.get();
        // Of the two questions, the first is whether a rank's list is another.
        let asked = Cell::new(0);
        let any = |own: bool| own || another && asked.replace(asked.get() + 1) == 1;
        let how = Verification { any: &any, ..Verification::default() };
        assert!(matches!(small.verified_after(0, &how, body), Verified::Same { tensors: 1, bytes: 256 }));
        assert_eq!(runs.get() - before, expected);
    }
}

/// `y` is 0, 1 and 2 in turn, so a verification finds another number with graphs than without. The gradient is doubled.
struct InTurn(Rc<Cell<usize>>);

impl<P: Policy> Layer<P> for InTurn {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        let output = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(changes(&self.0, |runs| runs % 3, output))?;
        Ok((output, ()))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        Ok(Double.forward(cx, grad)?.0)
    }
}

/// 0, 1 and 2 are not the same within the first, and are within the second.
fn tolerances() -> [Verification<'static>; 2] {
    let close = |absolute| Sameness::Close { relative: 0.1, absolute };
    [0.2, 2.0].map(|absolute| Verification { same: close(absolute), ..Verification::default() })
}

#[test]
fn what_a_capture_returns_is_verified_by_bits_or_within_a_tolerance() {
    let Small { device, total, _areas, .. } = small();
    device.upload(&total, &[1.0_f32; 64]).unwrap();
    let pool = Pool::new(device.stream("compute"));
    let one = std::num::NonZeroUsize::MIN;
    let mut double = Capture::new(&pool, "double", 1, one, |cx, x: Tensor| Ok(Double.forward(cx, x)?.0)).unwrap();
    assert_eq!(double.verify(total, &Verification::default()).unwrap(), Verified::NotYet);
    let layer = InTurn(Rc::default());
    let mut in_turn = Capture::new(&pool, "in turn", 1, one, move |cx, x: Tensor| Ok(layer.forward(cx, x)?.0)).unwrap();
    for _ in 0..2 {
        _ = double.run(total).unwrap();
        _ = in_turn.run(total).unwrap();
    }
    let same = Verified::Same { tensors: 1, bytes: 256 };
    for how in both().into_iter().chain(tolerances()) {
        assert_eq!(double.verify(total, &how).unwrap(), same);
    }
    for how in both() {
        let found = difference(in_turn.verify(total, &how).unwrap()).to_string();
        let words =
            "in turn: `in turn/y` (64 x f32, written by `changes`) has other bits with graphs: 64 elements differ";
        assert!(found.starts_with(words), "{found}");
    }
    let [apart, close] = tolerances();
    let found = difference(in_turn.verify(total, &apart).unwrap()).to_string();
    assert!(found.contains("has other values, beyond the tolerance, with graphs: 64 elements differ"), "{found}");
    assert_eq!(in_turn.verify(total, &close).unwrap(), same);
}

#[test]
fn graphed_layers_are_verified_with_an_order_and_without() {
    let Small { device, total, _areas, .. } = small();
    device.upload(&total, &[1.0_f32; 64]).unwrap();
    let pool = Pool::new(device.stream("compute"));
    for in_order in [false, true] {
        let order = |calls: &[f32], layers| in_order.then(|| CallOrder::signed(calls, &[layers]).unwrap());
        let two = order(&[1.0, 1.0, -1.0, -1.0], 2);
        let mut doubles = graph_callables(&pool, vec![Double, Double], &[total; 2], 1, two).unwrap();
        let found = doubles.verify(&[total; 2], &[total; 2], &Verification::default()).unwrap();
        assert!(matches!(found, Verified::Same { tensors: 1.., .. }), "{found:?}");
        // The step after it is like any other.
        let grad = doubles.forward(0, total).unwrap();
        assert_eq!(device.download::<f32>(&grad).unwrap(), [2.0; 64]);
        let few = doubles.verify(&[total], &[total; 2], &Verification::default());
        assert_refused(few, "1 input and 2 gradients were given for 2 layers");
        let other = doubles.verify(&[total.narrow(0, 8); 2], &[total; 2], &Verification::default());
        assert_refused(other, "input 0 is (8) f32, and was (64) f32 at the capture");
        let layers = vec![InTurn(Rc::default())];
        let mut in_turn = graph_callables(&pool, layers, &[total], 1, order(&[1.0, -1.0], 1)).unwrap();
        let found = difference(in_turn.verify(&[total], &[total], &Verification::default()).unwrap()).to_string();
        assert!(found.contains("written by `changes`) has other bits with graphs"), "{found}");
        let [_, close] = tolerances();
        let found = in_turn.verify(&[total], &[total], &close).unwrap();
        assert!(matches!(found, Verified::Same { tensors: 1.., .. }), "{found:?}");
    }
}
