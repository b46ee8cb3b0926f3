//! Mistakes that are refused or told without any option, in a debug build.

use std::cell::Cell;
use std::io::Write;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use device::cuda::CudaOptions;
use device::ops::{Add, Copy, CustomOp, Dropout, DropoutSite, Fill};
use device::{Accesses, DType, Device, HostOptions, HostTensors, Tensor};
use graph_manager::{
    CallOrder, Capture, CudaGraphManager, GraphedCallables, Layer, ManagerOptions, Masks, Policy, RandomState, Result,
    StepContext, TrainingPolicy, TrainingRegion, graph_callables,
};

use crate::fronts::double::Double;
use crate::named::Bench;
use crate::toy::{assert_refused, on_gpu};

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// On the device of a program that sets no option.
fn bench() -> Bench {
    Bench::on(match on_gpu() {
        true => Device::cuda(CudaOptions::default()).unwrap(),
        false => Device::host(HostOptions::default()).unwrap(),
    })
}

fn manager(bench: &Bench) -> CudaGraphManager<TrainingPolicy> {
    CudaGraphManager::in_pool(&bench.pool, ManagerOptions::default(), TrainingPolicy::default()).unwrap()
}

fn double(bench: &Bench) -> Capture<Tensor, Tensor> {
    Capture::new(&bench.pool, "double", 1, ONE, |cx, x: Tensor| Ok(Double.forward(cx, x)?.0)).unwrap()
}

/// Runs `body` with the number of the step, for two steps: the second one is the first that would not call it.
fn second_step(body: impl Fn(&mut StepContext<'_, TrainingPolicy>, usize, [Tensor; 2]) -> Result<()>) -> Result<()> {
    let bench = bench();
    let tensors = [bench.one, bench.x];
    let mut manager = manager(&bench);
    manager.step("train", 1, &mut |cx| body(cx, 0, tensors)).unwrap();
    let refused = manager.step("train", 1, &mut |cx| body(cx, 1, tensors));
    assert!(manager.step("train", 1, &mut |cx| body(cx, 1, tensors)).is_err(), "it is refused until it is the same");
    manager.step("train", 1, &mut |cx| body(cx, 0, tensors)).unwrap();
    refused
}

#[test]
fn an_input_that_is_replaced_is_refused() {
    let replaced = second_step(|cx, step, tensors| {
        cx.region(TrainingRegion::Once("loss"), tensors[step], |cx, x| Double.forward(cx, x).map(drop))
    });
    assert_refused(replaced, "loss: operation 0, `add`: `address` was ");
}

#[test]
fn a_host_scalar_that_changes_is_refused_in_a_manager_and_in_a_capture() {
    let scalar = second_step(|cx, step, [x, _]| {
        cx.region(TrainingRegion::Once("fill"), (), |cx, ()| cx.run(Fill { output: x, value: step as f32 }))
    });
    assert_refused(scalar, "fill: operation 0, `fill`: `value` was 0.0 when recorded and is now 1.0");
    let bench = bench();
    let (x, step) = (bench.x, Rc::new(Cell::new(0.0)));
    let now = step.clone();
    let fill = move |cx: &mut StepContext<'_, _>, ()| cx.run(Fill { output: x, value: now.get() });
    let mut capture = Capture::new(&bench.pool, "fill", 1, ONE, fill).unwrap();
    _ = capture.run(()).unwrap();
    step.set(1.0);
    assert_refused(capture.run(()), "fill: operation 0, `fill`: `value` was 0.0 when recorded and is now 1.0");
}

#[test]
fn another_order_and_a_layer_that_is_left_out_are_refused() {
    let layer = |cx: &mut StepContext<'_, TrainingPolicy>, layer: usize, x: Tensor| {
        cx.region(TrainingRegion::forward(layer, 0), x, |cx, x| Double.forward(cx, x).map(drop))
    };
    let other_order = second_step(|cx, step, [x, _]| {
        layer(cx, step, x)?;
        layer(cx, 1 - step, x)
    });
    assert_refused(
        other_order,
        "step position 0 expects `forward of layer 0, microbatch 0`, got `forward of layer 1, microbatch 0`",
    );
    let left_out = second_step(|cx, step, [x, _]| {
        layer(cx, 0, x)?;
        if step == 0 { layer(cx, 1, x) } else { Ok(()) }
    });
    assert_refused(left_out, "expects `forward of layer 1, microbatch 0`, got `the end of the step`");
}

/// `y` = the number of the call.
struct Counts(Cell<f32>);

impl<P: Policy> Layer<P> for Counts {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        let output = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Fill { output, value: self.0.replace(self.0.get() + 1.0) })?;
        Ok((output, ()))
    }

    fn backward(&self, _: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        Ok(grad)
    }
}

#[test]
fn a_layer_that_does_something_else_at_each_call_is_refused_when_it_is_graphed() {
    let bench = bench();
    let x = bench.one;
    let order = CallOrder::signed(&[1.0, -1.0], &[1]).unwrap();
    let graphed = graph_callables(&bench.pool, vec![Counts(Cell::new(0.0))], &[x], 1, Some(order));
    assert_refused(graphed, "forward of layer 0, microbatch 0: operation 1, `fill`: `value` was 0.0");
}

#[test]
fn a_backward_after_two_forwards_is_refused_without_an_order() {
    let bench = bench();
    let (x, y) = (bench.one, bench.filled(5.0));
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, None).unwrap();
    for _ in 0..2 {
        graphed.forward(0, x).unwrap();
        graphed.forward_later(0, y).unwrap();
        for _ in 0..2 {
            assert_refused(graphed.backward(0, x), "the backward of layer 0 was called after 2 forwards of it");
        }
        graphed.begin_step();
        assert_refused(graphed.backward(0, x), "the backward of layer 0 was called, and no forward comes before it");
        graphed.forward(0, y).unwrap();
        let grad = graphed.backward(0, y).unwrap();
        assert_eq!(bench.value(grad), 10.0);
        assert_refused(graphed.backward(0, x), "the backward of layer 0 was called, and no forward comes before it");
    }
    // The first value that a backward needs is that of its microbatch with an order.
    let order = CallOrder::signed(&[1.0, 1.0, -1.0, -1.0], &[1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, Some(order)).unwrap();
    (0..2).for_each(|_| _ = graphed.forward(0, x).unwrap());
    (0..2).for_each(|_| _ = graphed.backward(0, x).unwrap());
}

/// What [`Drops`] takes.
fn ones(bench: &Bench) -> Tensor {
    bench.tensor("ones", &[1.0; 64]).reshape([1, 1, 64])
}

/// Drops half of the values, each microbatch with a record of its own if there are as many.
struct Drops(Vec<DropoutSite>);

impl Drops {
    fn new(random: &RandomState, records: usize) -> Drops {
        let site = |record| DropoutSite { rate: 0.5, ..random.site(record).unwrap() };
        Drops((0..records).map(site).collect())
    }

    fn drop_in<P: Policy>(&self, cx: &mut StepContext<'_, P>, input: Tensor) -> Result<Tensor> {
        let output = cx.tensor("dropped", input.shape, DType::F32)?;
        let site = self.0[cx.microbatch().unwrap_or(0) % self.0.len()];
        cx.run(Dropout { input, output, site })?;
        Ok(output)
    }
}

impl<P: Policy> Layer<P> for Drops {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        Ok((self.drop_in(cx, x)?, ()))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        self.drop_in(cx, grad)
    }
}

/// Graphed layers in the order of a pipeline with three microbatches in flight.
fn three_in_flight(bench: &Bench, records: usize) -> Result<(GraphedCallables<Drops>, RandomState)> {
    let random = RandomState::new(&bench.pool, 1, NonZeroUsize::new(3).unwrap())?;
    let order = CallOrder::signed(&[1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0], &[1])?;
    let x = ones(bench);
    Ok((graph_callables(&bench.pool, vec![Drops::new(&random, records)], &[x], 1, Some(order))?, random))
}

#[test]
fn one_record_for_two_microbatches_in_flight_is_refused() {
    let bench = bench();
    for records in [1, 2] {
        let refused = three_in_flight(&bench, records).map(drop);
        let words = "backward of layer 0, microbatch 0 and forward of layer 0, microbatch";
        let both = "are in flight at once, and both use record 0 of a RandomState";
        assert_refused(refused, &format!("{words} {records} {both}"));
    }
    let (mut graphed, mut random) = three_in_flight(&bench, 3).unwrap();
    let x = ones(&bench);
    for _ in 0..2 {
        let mut seen: Vec<(Vec<f32>, Masks)> = Vec::new();
        let mut forward = |graphed: &mut GraphedCallables<Drops>, microbatch: usize| {
            let masks = random.draw(microbatch % 3).unwrap();
            let y = graphed.forward(0, x).unwrap();
            (bench.device.download::<f32>(&y).unwrap(), masks)
        };
        (0..3).for_each(|microbatch| seen.push(forward(&mut graphed, microbatch)));
        for microbatch in 0..4 {
            let (values, masks) = seen.remove(0);
            let grad = graphed.backward(0, x).unwrap();
            assert_eq!(values, bench.device.download::<f32>(&grad).unwrap(), "microbatch {microbatch}");
            drop(masks);
            if microbatch == 0 {
                seen.push(forward(&mut graphed, 3));
            }
        }
    }
}

/// Keeps what a subscriber of tracing is told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How often the code is told that random numbers repeat.
fn told(code: impl FnOnce()) -> usize {
    let told = Told::default();
    let writer = told.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, code);
    let text = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
    text.matches("a step uses record 0 of a RandomState again, and nothing was drawn into it since").count()
}

#[test]
fn random_numbers_that_repeat_are_told_once() {
    let bench = bench();
    let x = ones(&bench);
    for (draws, times) in [(true, 0), (false, 1)] {
        let mut random = RandomState::new(&bench.pool, 1, ONE).unwrap();
        let drops = Drops::new(&random, 1);
        let code = move |cx: &mut StepContext<'_, _>, x: Tensor| Ok(drops.forward(cx, x)?.0);
        let mut capture = Capture::new(&bench.pool, "drops", 1, ONE, code).unwrap();
        let of_capture = told(|| {
            for _ in 0..5 {
                let _masks = draws.then(|| random.draw(0).unwrap());
                _ = capture.run(x).unwrap();
            }
        });
        let mut random = RandomState::new(&bench.pool, 1, ONE).unwrap();
        let layers = vec![Drops::new(&random, 1)];
        let of_callables = told(|| {
            let mut graphed = graph_callables(&bench.pool, layers, &[x], 1, None).unwrap();
            for _ in 0..5 {
                let _masks = draws.then(|| random.draw(0).unwrap());
                graphed.forward(0, x).unwrap();
                graphed.backward(0, x).unwrap();
            }
        });
        assert_eq!([of_capture, of_callables], [times; 2], "draws: {draws}");
    }
}

#[test]
fn a_result_that_another_stream_reads_without_a_wait_is_refused() {
    let bench = bench();
    let (x, y) = (bench.one, bench.y);
    let other = bench.device.stream("other");
    let mut double = double(&bench);
    for _ in 0..3 {
        let result = *double.run(x).unwrap();
        let words = "on different streams are not ordered. Fix: record an event after";
        assert_refused(other.submit(Copy { input: result, output: y }).map_err(Into::into), words);
        let done = bench.device.event();
        bench.compute.record(&done).unwrap();
        other.wait(&done).unwrap();
        other.submit(Copy { input: result, output: y }).unwrap();
        other.record(&done).unwrap();
        bench.compute.wait(&done).unwrap();
    }
    assert_eq!(bench.value(y), 2.0);
}

#[test]
fn raw_graphs_that_share_scratch_on_two_streams_are_refused() {
    let bench = bench();
    let (x, scratch) = (bench.one, bench.x);
    let streams = ["one", "other"].map(|name| bench.device.stream(name));
    let graphs = streams.each_ref().map(|stream| {
        stream.begin_capture().unwrap();
        stream.submit(Add { a: x, b: x, output: scratch }).unwrap();
        stream.submit(Add { a: scratch, b: x, output: scratch }).unwrap();
        stream.end_capture("with scratch").unwrap()
    });
    bench.device.synchronize().unwrap();
    graphs[0].launch(&streams[0]).unwrap();
    assert_refused(graphs[1].launch(&streams[1]).map_err(Into::into), "race on buffer `x`");
}

#[test]
fn a_result_that_is_kept_beyond_the_next_run_is_refused() {
    let bench = bench();
    let (x, y) = (bench.one, bench.y);
    let stale = |read: Result<()>| assert_refused(read, "of an earlier run, and");
    let copy = |bench: &Bench, input| bench.compute.submit(Copy { input, output: y }).map_err(Into::into);
    let mut double = double(&bench);
    let mut before = *double.run(x).unwrap();
    for _ in 0..20 {
        let now = *double.run(x).unwrap();
        assert_eq!((now.address, bench.value(now)), (before.address, 2.0));
        stale(copy(&bench, before));
        before = now;
    }
    // A result may be changed in place, and a graph that names it reads what is there.
    bench.compute.submit(Fill { output: before, value: 5.0 }).unwrap();
    assert_eq!(bench.value(before), 5.0);
    let code = move |cx: &mut StepContext<'_, _>, ()| Ok(Double.forward(cx, before)?.0);
    let mut reader = Capture::new(&bench.pool, "reader", 1, ONE, code).unwrap();
    for _ in 0..4 {
        _ = double.run(x).unwrap();
        assert_eq!(bench.value(*reader.run(()).unwrap()), 4.0);
    }
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, None).unwrap();
    let kept = graphed.forward(0, x).unwrap();
    graphed.backward(0, kept).unwrap();
    graphed.forward(0, x).unwrap();
    stale(copy(&bench, kept));
    let mut manager = manager(&bench);
    let mut step = || {
        manager.step("train", 1, &mut |cx| {
            cx.region(TrainingRegion::Once("double"), x, |cx, x| Ok(Double.forward(cx, x)?.0))
        })
    };
    let kept = step().unwrap();
    step().unwrap();
    stale(copy(&bench, kept));
}

/// Copies a tensor, and holds an address beside.
#[derive(Debug)]
struct Holds {
    from: Tensor,
    to: Tensor,
    _pointer: u64,
}

impl CustomOp for Holds {
    fn name(&self) -> &'static str {
        "holds"
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.from], [self.to])
    }

    fn run_host(&self, _: &mut HostTensors<'_>) -> device::Result<()> {
        Ok(())
    }
}

#[test]
fn the_address_of_a_planned_tensor_as_a_number_is_refused_when_it_is_recorded() {
    if on_gpu() {
        return; // The operation has no side for it.
    }
    let bench = bench();
    let x = bench.one;
    for raw in [true, false] {
        let code = move |cx: &mut StepContext<'_, _>, from: Tensor| {
            let to = cx.tensor("to", from.shape, DType::F32)?;
            cx.run(Holds { from, to, _pointer: if raw { from.address } else { from.bytes() as u64 } })?;
            Ok(to)
        };
        let mut capture = Capture::new(&bench.pool, "holds", 1, ONE, code).unwrap();
        match raw {
            true => assert_refused(capture.run(x), "holds: holds: it holds an address of a recording as a number"),
            false => drop(capture.run(x).unwrap()),
        }
    }
}
