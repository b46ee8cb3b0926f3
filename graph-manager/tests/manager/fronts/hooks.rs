//! Hooks of graphs, and of the calls of graphed layers.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use device::ops::Add;
use device::{DType, Stream, Tensor};
use graph_manager::{
    Call, CallHooks, CallOrder, Capture, Error, GraphHooks, Layer, Pool, Result, TrainingPolicy, graph_callables,
};

use super::double::Double;
use crate::named::bench;
use crate::toy::assert_refused;

type Log = Rc<RefCell<Vec<String>>>;

/// Notes all that it hears.
struct Noting(Log);

impl Noting {
    fn note(&self, moment: &str, graph: &str) {
        self.0.borrow_mut().push(format!("{moment} {graph}"));
    }
}

impl GraphHooks for Noting {
    fn before_capture(&self, graph: &str) {
        self.note("capture", graph);
    }

    fn before_instantiate(&self, graph: &str) {
        self.note("instantiate", graph);
    }

    fn after_instantiate(&self, graph: &str, nodes: usize) {
        self.note("ready", &format!("{graph} of {nodes}"));
    }

    fn before_replay(&self, graph: &str) {
        self.note("replay", graph);
    }

    fn after_replay(&self, graph: &str) {
        self.note("replayed", graph);
    }

    fn before_drop(&self, graph: &str) {
        self.note("drop", graph);
    }
}

/// A capture that doubles, in a pool with hooks.
fn heard_double(compute: &Stream, log: &Log) -> Capture<Tensor, Tensor> {
    let pool = Pool::with_hooks(compute.clone(), Rc::new(Noting(log.clone())));
    Capture::new(&pool, "double", 1, NonZeroUsize::MIN, |cx, x: Tensor| Ok(Double.forward(cx, x)?.0)).unwrap()
}

#[test]
fn hooks_of_graphs_are_called_at_each_turning_point() {
    let (bench, log) = (bench(), Log::default());
    let x = bench.one;
    let mut double = heard_double(&bench.compute, &log);
    let heard = || std::mem::take(&mut *log.borrow_mut());
    double.run(x).unwrap();
    assert!(heard().is_empty(), "a warm-up run has no graph");
    double.run(x).unwrap();
    let capture = ["capture double", "instantiate double", "ready double of 1", "replay double", "replayed double"];
    assert_eq!(heard(), capture);
    double.run(x).unwrap();
    assert_eq!(heard(), ["replay double", "replayed double"]);
    double.reset().unwrap();
    assert_eq!(heard(), ["drop double"]);
    (0..2).for_each(|_| _ = double.run(x).unwrap());
    heard();
    drop(double);
    assert_eq!(heard(), ["drop double"]);
}

#[test]
fn a_graph_that_becomes_a_part_of_another_is_not_replayed() {
    let (bench, log) = (bench(), Log::default());
    let (x, compute) = (bench.one, &bench.compute);
    let mut double = heard_double(compute, &log);
    (0..2).for_each(|_| _ = double.run(x).unwrap());
    log.borrow_mut().clear();
    // Inside a capture of the device, and inside a region of another pool.
    compute.begin_capture().unwrap();
    double.run(x).unwrap();
    let outer = compute.end_capture("outer").unwrap();
    let mut around = Capture::new(&bench.pool, "around", 1, NonZeroUsize::MIN, move |cx, x: Tensor| {
        let doubled = *double.run(x)?;
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: doubled, b: x, output: y })?;
        Ok(y)
    })
    .unwrap();
    for _ in 0..3 {
        assert_eq!(bench.value(*around.run(x).unwrap()), 3.0);
    }
    outer.launch(compute).unwrap();
    assert!(log.borrow().is_empty(), "{:?}", log.borrow());
}

/// Reads each tensor that it gets. Its work for gradients of inputs, `total += grad`, runs on the stream of the graphs.
struct Reading {
    log: Log,
    compute: Stream,
    total: Tensor,
}

impl Reading {
    fn note(&self, what: &str, call: Call, tensor: &Tensor) -> Result<()> {
        let value = self.compute.read::<f32>(tensor)?.wait()?[0];
        self.log.borrow_mut().push(format!("{what} {call}: {value}"));
        Ok(())
    }
}

impl<L: Layer<TrainingPolicy, Input = Tensor, Output = Tensor, InputGrad = Tensor>> CallHooks<L> for Reading {
    fn before_forward(&mut self, call: Call, input: &Tensor) -> Result<()> {
        self.note("before", call, input)
    }

    fn after_forward(&mut self, call: Call, output: &Tensor) -> Result<()> {
        self.note("after", call, output)
    }

    fn before_backward(&mut self, call: Call, grad: &Tensor) -> Result<()> {
        self.note("before", call, grad)
    }

    fn after_backward(&mut self, call: Call, grad: &Tensor) -> Result<()> {
        self.compute.submit(Add { a: self.total, b: *grad, output: self.total })?;
        self.note("after", call, grad)
    }

    fn after_weight_gradients(&mut self, call: Call) -> Result<()> {
        self.log.borrow_mut().push(format!("after {call}"));
        Ok(())
    }
}

#[test]
fn hooks_of_calls_get_values_and_gradients_in_each_step_outside_of_the_graphs() {
    let bench = bench();
    let (x, total) = (bench.one, bench.z);
    let order = CallOrder::signed(&[1.0, -1.0, -1.5], &[1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, Some(order)).unwrap();
    let log = Log::default();
    graphed.set_hooks(Reading { log: log.clone(), compute: bench.compute.clone(), total });
    for step in 1..4 {
        let y = graphed.forward(0, x).unwrap();
        graphed.backward(0, y).unwrap();
        graphed.weight_gradients(0).unwrap();
        let expected = [
            "before forward of layer 0, microbatch 0: 1",
            "after forward of layer 0, microbatch 0: 2",
            "before backward of layer 0, microbatch 0: 2",
            "after backward of layer 0, microbatch 0: 4",
            "after weight gradients of layer 0, microbatch 0",
        ];
        assert_eq!(std::mem::take(&mut *log.borrow_mut()), expected);
        assert_eq!(bench.value(total), 4.0 * step as f32);
    }
}

/// Refuses every gradient.
struct Refusing;

impl CallHooks<Double> for Refusing {
    fn before_backward(&mut self, call: Call, _: &Tensor) -> Result<()> {
        Err(Error::Usage { problem: format!("no {call}"), fix: "none" })
    }
}

#[test]
fn an_error_of_a_hook_ends_the_call_before_its_graph_runs() {
    let bench = bench();
    let x = bench.one;
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, None).unwrap();
    graphed.set_hooks(Refusing);
    graphed.forward(0, x).unwrap();
    assert_refused(graphed.backward(0, x), "no backward of layer 0, microbatch 0");
    // The backward is still due.
    struct Silent;
    impl CallHooks<Double> for Silent {}
    graphed.set_hooks(Silent);
    graphed.backward(0, x).unwrap();
}
