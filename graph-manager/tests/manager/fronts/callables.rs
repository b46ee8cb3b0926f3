//! Graphed layers: lists of several types, orders recorded from calls, orders without backwards, first microbatches.

use std::cell::Cell;

use device::ops::{Add, Copy, Fill};
use device::{DType, Tensor};
use graph_manager::{CallOrder, GraphedCallables, Layer, Policy, Result, StepContext, TrainingPolicy, graph_callables};

use super::double::Double;
use crate::named::{Bench, bench};
use crate::toy::assert_refused;

/// `y = x + copy`, where the copy of the weight is made in the first microbatch. Its backward returns the gradient plus
/// the input. The first microbatch's overwrites `sum` with the gradient, later ones add to it.
#[derive(Clone, Copy)]
struct Shift {
    weight: Tensor,
    copy: Tensor,
    sum: Tensor,
}

impl Shift {
    fn new(bench: &Bench) -> Shift {
        Shift { weight: bench.filled(1.0), copy: bench.filled(0.0), sum: bench.filled(0.0) }
    }
}

impl<P: Policy> Layer<P> for Shift {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    /// The input.
    type Saved = Tensor;

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, Tensor)> {
        if cx.is_first_microbatch() {
            cx.run(Copy { input: self.weight, output: self.copy })?;
        }
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: self.copy, output: y })?;
        Ok((y, x))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, x: Tensor, grad: Tensor) -> Result<Tensor> {
        match cx.is_first_microbatch() {
            true => cx.run(Copy { input: grad, output: self.sum })?,
            false => cx.run(Add { a: self.sum, b: grad, output: self.sum })?,
        }
        let input_grad = cx.tensor("input_grad", grad.shape, DType::F32)?;
        cx.run(Add { a: grad, b: x, output: input_grad })?;
        Ok(input_grad)
    }
}

/// The names of the operations in the graphs of forwards of a layer.
fn operations_of_forwards<L: Layer<TrainingPolicy>>(graphed: &GraphedCallables<L>, layer: usize) -> Vec<Vec<String>> {
    let reports = graphed.reports();
    let graphs = reports.iter().flat_map(|report| &report.graphs);
    let forwards = graphs.filter(|graph| graph.name.starts_with(&format!("forward of layer {layer},")));
    let name = |node: &String| node.rsplit('/').next().unwrap().to_string();
    forwards.map(|graph| graph.nodes.iter().map(name).collect()).collect()
}

#[test]
fn layers_of_several_types_form_one_list() {
    let bench = bench();
    let shift = Shift::new(&bench);
    let sample = bench.filled(0.0);
    for order in [None, Some(CallOrder::signed(&[1.0, -1.0], &[2]).unwrap())] {
        let layers = vec![Double.boxed(), shift.boxed()];
        let mut graphed = graph_callables(&bench.pool, layers, &[sample, sample], 1, order).unwrap();
        for value in 1..4 {
            let x = bench.filled(value as f32);
            let middle = graphed.forward(0, x).unwrap();
            let y = graphed.forward(1, middle).unwrap();
            assert_eq!(bench.value(y), 2.0 * value as f32 + 1.0);
            let grad = graphed.backward(1, x).unwrap();
            let grad = graphed.backward(0, grad).unwrap();
            assert_eq!(bench.value(grad), 2.0 * (value as f32 + 2.0 * value as f32), "saved values have their types");
            assert_eq!(bench.value(shift.sum), value as f32);
        }
    }
}

#[test]
fn a_step_that_was_given_up_can_be_followed_by_one_from_the_beginning() {
    let bench = bench();
    let shift = Shift::new(&bench);
    let (x, wrong) = (bench.filled(2.0), bench.filled(0.0).narrow(0, 2));
    for order in [None, Some(CallOrder::signed(&[1.0, -1.0, 1.0, -1.0], &[1]).unwrap())] {
        let in_order = order.is_some();
        let mut graphed = graph_callables(&bench.pool, vec![shift], &[x], 1, order).unwrap();
        let backward = |graphed: &mut GraphedCallables<Shift>| graphed.backward(0, x).unwrap();
        graphed.forward(0, x).unwrap();
        backward(&mut graphed);
        graphed.forward(0, wrong).unwrap_err();
        graphed.begin_step();
        for microbatch in [0, 1] {
            let y = match microbatch == 0 || in_order {
                true => graphed.forward(0, x).unwrap(),
                false => graphed.forward_later(0, x).unwrap(),
            };
            assert_eq!(bench.value(y), 3.0);
            backward(&mut graphed);
        }
        assert_eq!(bench.value(shift.sum), 4.0, "the first microbatch has overwritten what was there");
    }
}

#[test]
fn the_saved_values_of_a_boxed_layer_are_not_taken_for_those_of_another() {
    let bench = bench();
    let (shift, x) = (Shift::new(&bench), bench.filled(1.0));
    let mut manager = graph_manager::CudaGraphManager::in_pool(
        &bench.pool,
        graph_manager::ManagerOptions::default(),
        TrainingPolicy::default(),
    )
    .unwrap();
    let (double, shift) = (Double.boxed(), shift.boxed());
    let error = manager.step("train", 1, &mut |cx| {
        let region = graph_manager::TrainingRegion::Once("mixed up");
        cx.region(region, x, |cx, x| {
            let (y, saved) = double.forward(cx, x)?;
            shift.backward(cx, saved, y)
        })
    });
    assert_refused(error, "a backward got the saved values of a layer of another type");
}

#[test]
fn an_order_recorded_from_calls_is_that_of_the_signed_numbers() {
    let signed = [1.0, 2.0, 1.0, 2.0, -2.0, -1.0, -2.5, -1.5, -2.0, -1.0, -2.5, -1.5];
    let recorded = CallOrder::recorded(|calls| {
        for _ in 0..2 {
            (0..3).for_each(|layer| calls.forward(layer));
        }
        for _ in 0..2 {
            [2, 1, 0].iter().for_each(|&layer| calls.backward(layer));
            [2, 1, 0].iter().for_each(|&layer| calls.weight_gradients(layer));
        }
    });
    assert_eq!(recorded.unwrap(), CallOrder::signed(&signed, &[2, 1]).unwrap());
    let early = CallOrder::recorded(|calls| {
        calls.forward(0);
        calls.backward(1);
        calls.backward(0);
    });
    let words = "call 1 is the backward of layer 1, and no forward comes before it";
    assert!(early.unwrap_err().to_string().contains(words));
}

#[test]
fn an_order_of_forwards_alone_makes_graphs_for_inference() {
    let bench = bench();
    let shift = Shift::new(&bench);
    let sample = bench.filled(0.0);
    let order = CallOrder::recorded(|calls| {
        for _microbatch in 0..3 {
            calls.forward(0);
            calls.forward(1);
        }
    });
    let layers = vec![Double.boxed(), shift.boxed()];
    let mut graphed = graph_callables(&bench.pool, layers, &[sample; 2], 1, Some(order.unwrap())).unwrap();
    assert_eq!(graphed.reports()[0].graphs.len(), 6);
    for step in 0..3 {
        for microbatch in 0..3 {
            let x = bench.filled((3 * step + microbatch) as f32);
            let middle = graphed.forward(0, x).unwrap();
            let y = graphed.forward(1, middle).unwrap();
            let [doubled, shifted] = [middle, y].map(|tensor| bench.value(tensor));
            assert_eq!((doubled, shifted), (2.0 * bench.value(x), 2.0 * bench.value(x) + 1.0));
        }
    }
    // The output of a layer stays while others run.
    let x = bench.filled(5.0);
    let first = graphed.forward(0, x).unwrap();
    let shifted = graphed.forward(1, first).unwrap();
    graphed.forward(0, x).unwrap();
    assert_eq!(bench.value(shifted), 11.0);
    let words = "call 3 of a step was the backward of layer 1, microbatch 0, and the order has the forward of layer 1, \
                 microbatch 1 there";
    assert_refused(graphed.backward(1, x), words);
}

#[test]
fn copies_of_weights_are_made_once_a_step_in_the_first_microbatch_of_an_order() {
    let bench = bench();
    let shift = Shift::new(&bench);
    let x = bench.filled(10.0);
    let order = CallOrder::signed(&[1.0, 1.0, -1.0, 1.0, -1.0, -1.0], &[1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, vec![shift], &[x], 1, Some(order)).unwrap();
    assert_eq!(operations_of_forwards(&graphed, 0), [vec!["copy", "add"], vec!["add"], vec!["add"]]);
    for step in 1..4 {
        bench.device.upload(&shift.weight, &[step as f32; 4]).unwrap();
        let y = graphed.forward(0, x).unwrap();
        assert_eq!(bench.value(y), 10.0 + step as f32);
        // Nothing but the first microbatch looks at the weight.
        bench.device.upload(&shift.weight, &[100.0_f32; 4]).unwrap();
        let y = graphed.forward(0, x).unwrap();
        assert_eq!(bench.value(y), 10.0 + step as f32);
        graphed.backward(0, x).unwrap();
        graphed.forward(0, x).unwrap();
        graphed.backward(0, x).unwrap();
        graphed.backward(0, x).unwrap();
        assert_eq!(bench.value(shift.sum), 30.0, "the first overwrites, two add");
    }
}

#[test]
fn without_an_order_a_later_forward_uses_the_copies_of_the_first() {
    let bench = bench();
    let (shift, other) = (Shift::new(&bench), Shift::new(&bench));
    let x = bench.filled(10.0);
    let mut graphed = graph_callables(&bench.pool, vec![shift, other], &[x, x], 1, None).unwrap();
    assert_eq!(operations_of_forwards(&graphed, 0), [vec!["copy", "add"], vec!["add"]]);
    for step in 1..4 {
        bench.device.upload(&shift.weight, &[step as f32; 4]).unwrap();
        let y = graphed.forward(0, x).unwrap();
        assert_eq!(bench.value(y), 10.0 + step as f32);
        let grad = graphed.backward(0, x).unwrap();
        bench.device.upload(&shift.weight, &[100.0_f32; 4]).unwrap();
        for later in 1..3 {
            let y = graphed.forward_later(0, x).unwrap();
            assert_eq!(bench.value(y), 10.0 + step as f32);
            graphed.backward(0, x).unwrap();
            assert_eq!(bench.value(shift.sum), 10.0 * (1 + later) as f32);
        }
        let _ = grad;
    }
}

/// `y = x + copy`, where the first microbatch copies the weight to memory of the step.
struct PlannedCopy {
    weight: Tensor,
    copy: Cell<Option<Tensor>>,
}

impl<P: Policy> Layer<P> for PlannedCopy {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        if cx.is_first_microbatch() {
            let copy = cx.tensor("copy of the weight", x.shape, DType::F32)?;
            cx.run(Copy { input: self.weight, output: copy })?;
            self.copy.set(Some(copy));
        }
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: self.copy.get().unwrap(), output: y })?;
        Ok((y, ()))
    }

    fn backward(&self, _: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        Ok(grad)
    }
}

#[test]
fn a_copy_in_memory_of_the_step_serves_an_order_and_is_refused_without_one() {
    let bench = bench();
    let (weight, x) = (bench.filled(1.0), bench.filled(2.0));
    let layers = || vec![PlannedCopy { weight, copy: Cell::default() }];
    assert_refused(
        graph_callables(&bench.pool, layers(), &[x], 1, None),
        "a later microbatch of layer 0 uses `copy of the weight`",
    );
    let order = CallOrder::signed(&[1.0, -1.0, 1.0, -1.0], &[1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, layers(), &[x], 1, Some(order)).unwrap();
    for _ in 0..2 {
        for _ in 0..2 {
            let y = graphed.forward(0, x).unwrap();
            assert_eq!(bench.value(y), 3.0);
            graphed.backward(0, x).unwrap();
        }
    }
}

#[test]
fn a_layer_that_does_the_same_in_every_microbatch_has_one_graph_of_each_phase() {
    let bench = bench();
    let x = bench.filled(2.0);
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, None).unwrap();
    assert_eq!(graphed.reports()[0].graphs.len(), 2);
    let y = graphed.forward_later(0, x).unwrap();
    assert_eq!(bench.value(y), 4.0);
    graphed.backward(0, x).unwrap();
}

#[test]
fn an_order_counts_microbatches_itself() {
    let bench = bench();
    let x = bench.filled(2.0);
    let order = CallOrder::signed(&[1.0, -1.0], &[1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, vec![Double], &[x], 1, Some(order)).unwrap();
    assert_refused(
        graphed.forward_later(0, x),
        "forward_later of layer 0 was called, and the order counts the microbatches",
    );
}

/// Writes to `seen` whether its microbatch is the last one.
struct Last {
    seen: Tensor,
}

impl<P: Policy> Layer<P> for Last {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = ();
    type Saved = ();

    fn forward(&self, _: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        Ok((x, ()))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), _: Tensor) -> Result<()> {
        let value = if cx.is_last_microbatch() { 1.0 } else { 2.0 };
        cx.run(Fill { output: self.seen, value })
    }
}

#[test]
fn a_backward_knows_the_last_microbatch_of_an_order_and_without_one_each_is_the_last() {
    let bench = bench();
    let (x, seen) = (bench.filled(0.0), bench.filled(0.0));
    let order = CallOrder::signed(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0], &[1]).unwrap();
    for (order, expected) in [(Some(order), [2.0, 2.0, 1.0]), (None, [1.0; 3])] {
        let mut graphed = graph_callables(&bench.pool, vec![Last { seen }], &[x], 1, order).unwrap();
        for value in expected {
            graphed.forward(0, x).unwrap();
            graphed.backward(0, x).unwrap();
            assert_eq!(bench.value(seen), value);
        }
    }
}
