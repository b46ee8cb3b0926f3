//! Twelve mistakes that capturing invites, each in the words of the front that was used.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use device::ops::{Add, Fill};
use device::{DType, Tensor};
use graph_manager::{
    ByHand, CallOrder, Capture, CheckReplays, CudaGraphManager, GraphedCallables, Layer, ManagerOptions, Policy, Pool,
    Result, StepContext, TrainingPolicy, TrainingRegion, graph_callables,
};

use crate::named::{Bench, bench, compared};
use crate::toy::assert_refused;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// Code that is run in the middle of a layer, of a capture, or of a region.
type Code = Rc<dyn Fn() -> Result<()>>;

/// `y = 2 x`, after some code.
struct Double(Code);

impl<P: Policy> Layer<P> for Double {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: x, output: y })?;
        (self.0)()?;
        Ok((y, ()))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        Ok(Layer::<P>::forward(self, cx, grad)?.0)
    }
}

fn nothing() -> Code {
    Rc::new(|| Ok(()))
}

fn capture(pool: &Pool, name: &'static str, code: Code) -> Capture<Tensor, Tensor> {
    let double = Double(code);
    Capture::new(pool, name, 1, ONE, move |cx, x: Tensor| Ok(double.forward(cx, x)?.0)).unwrap()
}

fn callables(bench: &Bench, code: Code, order: Option<&[f32]>) -> Result<GraphedCallables<Double>> {
    let order = order.map(|order| CallOrder::signed(order, &[1, 1]).unwrap());
    let layers = vec![Double(code.clone()), Double(code)];
    graph_callables(&bench.pool, layers, &[bench.one; 2], 1, order)
}

fn manager(bench: &Bench, options: ManagerOptions) -> CudaGraphManager<TrainingPolicy> {
    CudaGraphManager::new(bench.compute.clone(), options, TrainingPolicy::default()).unwrap()
}

/// The errors of the code in a capture, in graphed layers, and in a manager's region.
fn in_each_front(bench: &Bench, code: impl Fn() -> Result<()> + 'static) -> [String; 3] {
    let (code, x): (Code, Tensor) = (Rc::new(code), bench.one);
    let of_capture = capture(&bench.pool, "double", code.clone()).run(x).unwrap_err();
    let of_callables = callables(bench, code.clone(), None).err().unwrap();
    let region = TrainingRegion::of_microbatch("loss", 0);
    let double = Double(code);
    let mut step =
        |cx: &mut StepContext<'_, TrainingPolicy>| cx.region(region, x, |cx, x| Ok(double.forward(cx, x)?.0));
    let of_manager = manager(bench, ManagerOptions::default()).step("train", 1, &mut step).unwrap_err();
    [of_capture, of_callables, of_manager].map(|error| error.to_string())
}

/// The regions of [`in_each_front`], in the words of each front.
const REGIONS: [&str; 3] = ["double", "forward of layer 0, microbatch 0", "loss of microbatch 0"];

#[track_caller]
fn assert_begins(errors: [String; 3], problem: &str) {
    for (error, region) in errors.iter().zip(REGIONS) {
        assert!(error.starts_with(&format!("{region}: {problem}")) && error.contains("Fix: "), "{error}");
    }
}

#[test]
fn mistake_1_calls_in_another_order() {
    let bench = bench();
    let x = bench.one;
    let mut graphed = callables(&bench, nothing(), Some(&[1.0, 2.0, -2.0, -1.0])).unwrap();
    graphed.forward(0, x).unwrap();
    let words = "call 1 of a step was the backward of layer 0, microbatch 0, and the order has the forward of layer 1, \
                 microbatch 0 there. Rule: graphed layers share memory in the order of their capture";
    assert_refused(graphed.backward(0, x), words);
    assert_refused(graphed.weight_gradients(1), "call 1 of a step was the weight gradients of layer 1, microbatch 0");
    assert_refused(graphed.forward(2, x), "layer 2 was called, of 2 layers");
    // The call that is due still works.
    graphed.forward(1, x).unwrap();
}

#[test]
fn mistake_2_an_input_or_a_weight_that_was_freed() {
    let bench = bench();
    let area = bench.device.allocate("gone", 16).unwrap();
    let gone = area.tensor("gone", 0, [4], DType::F32);
    bench.device.zero(&gone).unwrap();
    let x = bench.one;
    let mut add = Capture::new(&bench.pool, "add", 1, ONE, move |cx, x: Tensor| {
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: gone, output: y })?;
        Ok(y)
    })
    .unwrap();
    (0..2).for_each(|_| _ = add.run(x).unwrap());
    let mut double = capture(&bench.pool, "double", nothing());
    (0..2).for_each(|_| _ = double.run(gone).unwrap());
    let mut graphed = callables(&bench, nothing(), None).unwrap();
    drop(area);
    let of_input = [double.run(gone).unwrap_err().to_string(), graphed.forward(0, gone).unwrap_err().to_string()];
    for (error, region) in of_input.iter().zip(["double", "forward of layer 0, microbatch 0"]) {
        assert!(error.starts_with(region) && error.contains("`gone`") && error.contains("free"), "{error}");
    }
    let error = add.run(x).unwrap_err().to_string();
    assert!(error.contains("add") && error.contains("`gone`") && error.contains("free"), "{error}");
}

#[test]
fn mistake_3_another_shape() {
    let bench = bench();
    let (x, longer) = (bench.one, bench.tensor("longer", &[1.0; 6]));
    let mut graphed = callables(&bench, nothing(), None).unwrap();
    let words = "forward of layer 0, microbatch 0: input 0 is (6) f32, and was (4) f32 at the capture";
    assert_refused(graphed.forward(0, longer), words);
    graphed.forward(0, x).unwrap();
    let words = "backward of layer 0, microbatch 0: gradient 0 is (6) f32, and was (4) f32 at the capture";
    assert_refused(graphed.backward(0, longer), words);
    // A capture has a graph for each shape. Inside another region it cannot make one.
    let (mut inner, outer) = (capture(&bench.pool, "inner", nothing()), Pool::new(bench.compute.clone()));
    (0..2).for_each(|_| _ = inner.run(x).unwrap());
    let mut outer = Capture::new(&outer, "outer", 1, ONE, move |_, x: Tensor| Ok(*inner.run(x)?)).unwrap();
    let words = "the capture `inner` was run inside another region on (6) f32, and has graphs for (4) f32";
    assert_refused(outer.run(longer), words);
    // The code of a manager's step would now submit another shape.
    let mut manager = manager(&bench, compared());
    let mut step = |output| {
        manager.step("train", 1, &mut |cx| {
            cx.region(TrainingRegion::Once("fill"), (), |cx, ()| cx.run(Fill { output, value: 0.0 }))
        })
    };
    (0..2).for_each(|_| step(longer).unwrap());
    let shorter = Tensor { shape: [4].into(), ..longer };
    assert_refused(step(shorter), "fill: operation 0, `fill`: `shape` was (6) when recorded and is now (4)");
}

#[test]
fn mistake_4_a_value_of_the_host_that_changes() {
    let bench = bench();
    let x = bench.one;
    let mut manager = manager(&bench, compared());
    let mut step = |value| {
        manager.step("train", 1, &mut |cx| {
            cx.region(TrainingRegion::backward(3, 0), (), |cx, ()| cx.run(Fill { output: x, value }))
        })
    };
    (0..3).for_each(|_| step(1.0).unwrap());
    let words = "backward of layer 3, microbatch 0: operation 0, `fill`: `value` was 1.0 when recorded and is now 2.0";
    assert_refused(step(2.0), words);
    // The same in a capture.
    let value = Rc::new(Cell::new(1.0));
    let now = value.clone();
    let fill = move |cx: &mut StepContext<'_, ByHand>, ()| cx.run(Fill { output: x, value: now.get() });
    let mut capture = Capture::new(&bench.pool, "fill", 1, ONE, fill).unwrap();
    capture.check_replays(CheckReplays::Always);
    (0..3).for_each(|_| _ = capture.run(()).unwrap());
    value.set(2.0);
    assert_refused(capture.run(()), "fill: operation 0, `fill`: `value` was 1.0 when recorded and is now 2.0");
}

#[test]
fn mistake_5_a_wait_in_the_code() {
    let bench = bench();
    let compute = bench.compute.clone();
    let errors = in_each_front(&bench, move || Ok(compute.synchronize()?));
    assert_begins(errors, "Stream::synchronize of stream `compute` while a step is recorded");
}

#[test]
fn mistake_6_an_allocation_in_the_code() {
    let bench = bench();
    let device = bench.device.clone();
    let errors = in_each_front(&bench, move || Ok(device.allocate("sneaky", 64).map(drop)?));
    assert_begins(errors, "Device::allocate of `sneaky`, 64 bytes, while a step is recorded");
}

#[test]
fn mistake_7_a_capture_inside_another_before_it_has_a_graph() {
    let bench = bench();
    let (x, other) = (bench.one, Pool::new(bench.compute.clone()));
    let mut early = capture(&other, "early", nothing());
    let mut outer = Capture::new(&bench.pool, "outer", 1, ONE, move |_, x: Tensor| Ok(*early.run(x)?)).unwrap();
    let words = "the capture `early` was run inside another region on (4) f32, and has no graph at all";
    assert_refused(outer.run(x), words);
    // A step of a manager inside another, too.
    let mut inner = manager(&bench, ManagerOptions::default());
    let mut outer = manager(&bench, ManagerOptions::default());
    let step = outer.step("train", 1, &mut |cx| {
        cx.region(TrainingRegion::Once("outer"), (), |_, ()| inner.step::<()>("train", 1, &mut |_| Ok(())))
    });
    assert_refused(step, "a step was recorded inside a region of another step");
}

#[test]
fn mistake_8_work_on_a_stream_that_the_graph_does_not_include() {
    let bench = bench();
    let (x, other) = (bench.one, bench.device.stream("other"));
    let submitted = other.clone();
    let errors = in_each_front(&bench, move || Ok(submitted.submit(Fill { output: x, value: 5.0 })?));
    assert_begins(errors, "`fill` was submitted to stream `other`, and a replay would leave it out");
    assert_eq!(bench.device.download::<f32>(&x).unwrap(), [1.0; 4], "nothing ran");
    // Nor may the code wait for work from before.
    let (event, compute) = (bench.device.event(), bench.compute.clone());
    other.record(&event).unwrap();
    let errors = in_each_front(&bench, move || Ok(compute.wait(&event)?));
    assert_begins(errors, "stream `compute` waits for an event that the step has not recorded before");
}

#[test]
fn mistake_9_a_capture_inside_a_region_with_the_wrong_pool() {
    let bench = bench();
    let (x, words) = (bench.one, "a capture or step was run inside a region that it shares scratch with");
    let mut inner = capture(&bench.pool, "inner", nothing());
    (0..2).for_each(|_| _ = inner.run(x).unwrap());
    let mut outer = Capture::new(&bench.pool, "outer", 1, ONE, move |_, x: Tensor| Ok(*inner.run(x)?)).unwrap();
    assert_refused(outer.run(x), words);
    let mut inner = capture(&Pool::new(bench.device.stream("other")), "inner", nothing());
    (0..2).for_each(|_| _ = inner.run(x).unwrap());
    let mut outer = Capture::new(&bench.pool, "outer", 1, ONE, move |_, x: Tensor| Ok(*inner.run(x)?)).unwrap();
    let words = "was submitted to stream `other`, and a replay would leave it out";
    assert_refused(outer.run(x), words);
}

#[test]
fn mistake_10_a_backward_before_its_forward() {
    let bench = bench();
    let x = bench.one;
    let mut graphed = callables(&bench, nothing(), None).unwrap();
    assert_refused(graphed.backward(1, x), "the backward of layer 1 was called, and no forward comes before it");
    graphed.forward(1, x).unwrap();
    graphed.backward(1, x).unwrap();
    assert_refused(graphed.backward(1, x), "the backward of layer 1 was called, and no forward comes before it");
    let words = "the weight gradients of layer 1 were called, and its backward computes them";
    assert_refused(graphed.weight_gradients(1), words);
    let mut in_order = callables(&bench, nothing(), Some(&[1.0, 2.0, -2.0, -1.0])).unwrap();
    assert_refused(in_order.backward(0, x), "call 0 of a step was the backward of layer 0, microbatch 0");
}

/// Does not compile if a type can be sent to another thread: the call would be ambiguous.
macro_rules! assert_stays_on_its_thread {
    ($($type:ty),*) => {{
        trait Ambiguous<A> {
            fn check() {}
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        impl<T: ?Sized + Send> Ambiguous<u8> for T {}
        $(<$type as Ambiguous<_>>::check();)*
    }};
}

#[test]
fn mistake_11_another_thread_does_not_compile() {
    assert_stays_on_its_thread!(
        Pool,
        Capture<Tensor, Tensor>,
        GraphedCallables<Double>,
        CudaGraphManager<TrainingPolicy>
    );
}

#[test]
fn mistake_12_no_warm_up() {
    let bench = bench();
    let x = bench.one;
    let rule = "of 0, but every kernel and collective must have run once before it is captured";
    let capture = Capture::new(&bench.pool, "double", 0, ONE, |_, x: Tensor| Ok(x)).map(drop);
    assert_refused(capture, &format!("the capture `double` has a `warm_up` {rule}"));
    let graphed = graph_callables(&bench.pool, vec![Double(nothing())], &[x], 0, None);
    assert_refused(graphed, &format!("graph_callables has a `warm_up` {rule}"));
    let options = ManagerOptions { warmup_steps: 0, ..ManagerOptions::default() };
    let manager = CudaGraphManager::new(bench.compute.clone(), options, TrainingPolicy::default());
    assert_refused(manager, &format!("ManagerOptions has a `warmup_steps` {rule}"));
}
