//! Captures by hand and graphed layers.

use std::num::NonZeroUsize;

use device::ops::{Add, Copy, Dropout, DropoutSite, Fill};
use device::{DType, Tensor};
use graph_manager::{
    CallOrder, Capture, Error, GraphedCallables, Layer, Policy, Pool, RandomState, Result, StepContext, TensorTree,
    graph_callables,
};

use crate::named::{Bench, bench};
use crate::toy::assert_refused;

const FEW: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// `x -> 2 x + x` by way of a scratch buffer.
fn triple(pool: &Pool, name: &'static str) -> Capture<Tensor, Tensor> {
    Capture::new(pool, name, 1, FEW, |cx, x: Tensor| {
        let scratch = cx.tensor("scratch", x.shape, DType::F32)?;
        let output = cx.tensor("output", x.shape, DType::F32)?;
        cx.run(Add { a: x, b: x, output: scratch })?;
        cx.run(Add { a: scratch, b: x, output })?;
        Ok(output)
    })
    .unwrap()
}

#[test]
fn each_run_does_the_work_once_eagerly_captured_and_replayed() {
    let bench = bench();
    let mut triple = triple(&bench.pool, "triple");
    for run in 0..5 {
        let x = bench.tensor("t", &[run as f32, 1.0]);
        let output = triple.run(x).unwrap();
        assert_eq!(bench.read(*output), [3.0 * run as f32, 3.0], "run {run}");
    }
    assert_eq!((triple.report().graphs.len(), triple.report().nodes()), (1, 2));
}

#[test]
fn outputs_stay_until_the_next_run_and_clones_longer() {
    let bench = bench();
    let (mut one, mut two) = (triple(&bench.pool, "one"), triple(&bench.pool, "two"));
    let (a, b, clone) = (bench.tensor("t", &[1.0]), bench.tensor("t", &[2.0]), bench.tensor("t", &[0.0]));
    for _ in 0..4 {
        let first = one.run(a).unwrap();
        two.run_into(b, &clone).unwrap();
        assert_eq!(bench.read(*first), [3.0], "the pool shares scratch, not outputs");
        two.run(a).unwrap();
        assert_eq!(bench.read(clone), [6.0]);
    }
}

#[test]
fn an_output_of_another_number_of_tensors_is_refused() {
    let bench = bench();
    let (x, output) = (bench.tensor("t", &[1.0]), bench.tensor("t", &[0.0]));
    let mut two = Capture::new(&bench.pool, "two", 1, FEW, |cx, x: Tensor| {
        let output = cx.tensor("output", x.shape, DType::F32)?;
        cx.run(Copy { input: x, output })?;
        Ok(vec![x, output])
    })
    .unwrap();
    assert_refused(two.run_into(x, &vec![output]), "the capture `two` returns 2 tensors, and `output` has 1 tensor");
    let output = bench.tensor("t", &[0.0, 0.0]);
    let words = "tensor 0 that the capture `two` returns is (1) f32, and in `output` (2) f32";
    assert_refused(two.run_into(x, &vec![output; 2]), words);
}

#[test]
fn captures_of_one_pool_share_scratch() {
    let bench = bench();
    let x = bench.tensor("t", &[1.0; 4096]);
    let mut captures = [triple(&bench.pool, "one"), triple(&bench.pool, "two"), triple(&bench.pool, "three")];
    captures.iter_mut().for_each(|capture| _ = capture.run(x).unwrap());
    assert_eq!(bench.pool.bytes(), 2 * 4 * 4096, "of one: its copy of the input, and a buffer");
    drop(captures);
    assert_eq!(bench.pool.bytes(), 0, "and give it back");
}

#[test]
fn each_shape_has_a_graph_and_the_oldest_goes_at_the_bound() {
    let bench = bench();
    let mut triple = triple(&bench.pool, "triple");
    for length in [1, 2, 3, 4, 5, 6, 1, 1, 1] {
        let x = bench.tensor("t", &vec![2.0; length]);
        for _ in 0..3 {
            let output = triple.run(x).unwrap();
            assert_eq!(bench.read(*output), vec![6.0; length]);
        }
        assert!(triple.report().graphs.len() <= FEW.get());
    }
}

#[test]
fn inputs_of_one_shape_in_other_places_have_graphs_of_their_own() {
    let bench = bench();
    type Input = (Option<Tensor>, Option<Tensor>, Vec<Vec<Tensor>>);
    let mut weighed = Capture::new(&bench.pool, "weighed", 1, FEW, |cx, (once, twice, lists): Input| {
        let sum = cx.tensor("sum", [1], DType::F32)?;
        cx.run(Fill { output: sum, value: 0.0 })?;
        let add = |tensor, times| (0..times).try_for_each(|_| cx.run(Add { a: sum, b: tensor, output: sum }));
        once.into_iter().try_for_each(|tensor| add(tensor, 1))?;
        twice.into_iter().try_for_each(|tensor| add(tensor, 2))?;
        let each = lists.iter().enumerate().flat_map(|(at, list)| list.iter().map(move |tensor| (*tensor, 3 + at)));
        each.into_iter().try_for_each(|(tensor, times)| add(tensor, times))?;
        Ok(sum)
    })
    .unwrap();
    let [a, b] = [1.0, 10.0].map(|value| bench.tensor("t", &[value]));
    let inputs: [(Input, f32); 4] = [
        ((Some(a), None, vec![vec![b]]), 1.0 + 30.0),
        ((None, Some(a), vec![vec![b]]), 2.0 + 30.0),
        ((None, None, vec![vec![a, b]]), 3.0 + 30.0),
        ((None, None, vec![vec![a], vec![b]]), 3.0 + 40.0),
    ];
    for run in 0..4 {
        for (input, expected) in &inputs {
            assert_eq!(bench.read(*weighed.run(input.clone()).unwrap()), [*expected], "run {run}");
        }
    }
    assert_eq!(weighed.report().graphs.len(), 4);
}

#[test]
fn a_capture_run_while_its_stream_captures_by_hand_is_a_child_of_that_graph_unless_it_has_a_when() {
    let bench = bench();
    let (x, total) = (bench.tensor("t", &[1.0]), bench.tensor("t", &[0.0]));
    let flag = bench.flag("flag", 1);
    let capture = |name, chooses: bool| {
        let mut inner = Capture::new(&bench.pool, name, 1, FEW, move |cx, x: Tensor| {
            let add = Add { a: total, b: x, output: total };
            if chooses { cx.when(flag, |body| body.run(add)) } else { cx.run(add) }
        })
        .unwrap();
        (0..2).for_each(|_| _ = inner.run(x).unwrap());
        inner
    };
    let (mut sum, mut chosen) = (capture("sum", false), capture("chosen", true));
    let compute = &bench.compute;
    compute.begin_capture().unwrap();
    sum.run(x).unwrap();
    let outer = compute.end_capture("outer").unwrap();
    outer.launch(compute).unwrap();
    assert_eq!(bench.read(total), [5.0]);
    compute.begin_capture().unwrap();
    let error = chosen.run(x).unwrap_err().to_string();
    compute.abandon_capture();
    assert!(error.contains("Rule: CUDA takes no child graph with a conditional node"), "{error}");
    chosen.run(x).unwrap();
    assert_eq!(bench.read(total), [6.0]);
}

/// A tensor that is added once or twice.
#[derive(Clone)]
enum Weighed {
    Once(Tensor),
    Twice(Tensor),
}

impl TensorTree for Weighed {
    fn map(&self, f: &mut dyn FnMut(&'static str, Tensor) -> Result<Tensor>) -> Result<Weighed> {
        match self {
            Weighed::Once(tensor) => Ok(Weighed::Once(f("once", *tensor)?)),
            Weighed::Twice(tensor) => Ok(Weighed::Twice(f("twice", *tensor)?)),
        }
    }
}

#[test]
fn variants_of_an_enum_with_tensors_of_the_same_shape_have_graphs_of_their_own_by_the_names() {
    let bench = bench();
    let mut weighed = Capture::new(&bench.pool, "weighed", 1, FEW, |cx, input: Weighed| {
        let sum = cx.tensor("sum", [1], DType::F32)?;
        match input {
            Weighed::Once(tensor) => cx.run(Copy { input: tensor, output: sum })?,
            Weighed::Twice(tensor) => cx.run(Add { a: tensor, b: tensor, output: sum })?,
        }
        Ok(sum)
    })
    .unwrap();
    let x = bench.tensor("t", &[5.0]);
    for run in 0..4 {
        for (input, expected) in [(Weighed::Once(x), 5.0), (Weighed::Twice(x), 10.0)] {
            assert_eq!(bench.read(*weighed.run(input).unwrap()), [expected], "run {run}");
        }
    }
    assert_eq!(weighed.report().graphs.len(), 2);
}

#[test]
fn a_capture_inside_another_becomes_a_part_of_its_list() {
    let bench = bench();
    let mut inner = triple(&bench.pool, "inner");
    let x = bench.tensor("t", &[1.0]);
    let other_pool = Pool::new(bench.compute.clone());
    (0..2).for_each(|_| _ = inner.run(x).unwrap());
    let mut outer = Capture::new(&other_pool, "outer", 1, FEW, move |cx, x: Tensor| {
        let y = cx.tensor("y", x.shape, DType::F32)?;
        cx.run(Copy { input: x, output: y })?;
        let tripled = *inner.run(y)?;
        cx.run(Add { a: tripled, b: x, output: y })?;
        Ok(y)
    })
    .unwrap();
    for run in 0..5 {
        let x = bench.tensor("t", &[run as f32]);
        let output = outer.run(x).unwrap();
        assert_eq!(bench.read(*output), [4.0 * run as f32], "run {run}");
    }
    let nodes = outer.report().graphs.remove(0).nodes;
    // A copy, the inner one's copy of its input and two sums, a sum.
    assert_eq!(nodes.len(), 5, "{nodes:?}");
}

#[test]
fn dropout_in_a_graph_draws_new_masks_and_the_same_again_after_a_seek() {
    let bench = bench();
    let mut random = RandomState::new(&bench.pool, 7, NonZeroUsize::MIN).unwrap();
    let site = DropoutSite { rate: 0.5, ..random.site(0).unwrap() };
    let x = bench.tensor("t", &[1.0; 256]);
    let x = x.reshape([1, 2, 128]);
    let mut drop_out = Capture::new(&bench.pool, "dropout", 1, FEW, move |cx, x: Tensor| {
        let output = cx.tensor("output", x.shape, DType::F32)?;
        cx.run(Dropout { input: x, output, site })?;
        Ok(output)
    })
    .unwrap();
    let mut masks = Vec::new();
    for _ in 0..5 {
        let _masks = random.draw(0).unwrap();
        let output = drop_out.run(x).unwrap();
        masks.push(bench.read(*output));
    }
    assert!((0..5).all(|a| (0..a).all(|b| masks[a] != masks[b])));
    for step in [3, 0, 4] {
        random.seek(step);
        let _masks = random.draw(0).unwrap();
        let output = drop_out.run(x).unwrap();
        assert_eq!(bench.read(*output), masks[step as usize]);
    }
}

/// `y = 3 x`; its backward adds the output's gradient times the saved input's sign (here: the gradient) to `sum`.
struct Tripling {
    sum: Tensor,
}

impl<P: Policy> Layer<P> for Tripling {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    /// The input.
    type Saved = Tensor;

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, Tensor)> {
        let (twice, y) = (cx.tensor("twice", x.shape, DType::F32)?, cx.tensor("y", x.shape, DType::F32)?);
        cx.run(Add { a: x, b: x, output: twice })?;
        cx.run(Add { a: twice, b: x, output: y })?;
        Ok((y, x))
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, x: Tensor, grad: Tensor) -> Result<Tensor> {
        let out = cx.tensor("grad", grad.shape, DType::F32)?;
        cx.run(Add { a: grad, b: x, output: out })?;
        cx.run(Add { a: self.sum, b: grad, output: self.sum })?;
        Ok(out)
    }
}

fn layers(bench: &Bench, count: usize) -> (Vec<Tripling>, Vec<Tensor>) {
    let sums: Vec<Tensor> = (0..count).map(|_| bench.tensor("t", &[0.0, 0.0])).collect();
    (sums.iter().map(|&sum| Tripling { sum }).collect(), sums)
}

/// Two chunks and three microbatches in an interleaved order; `split` has weight gradients apart.
fn interleaved(split: bool) -> Vec<f32> {
    let mut order = vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
    for _ in 0..3 {
        order.extend([-2.0, -1.0]);
        if split {
            order.extend([-2.5, -1.5]);
        }
    }
    order
}

#[test]
fn graphed_layers_in_pipeline_order_give_the_numbers_of_plain_arithmetic() {
    for split in [false, true] {
        let bench = bench();
        let (layers, sums) = layers(&bench, 2);
        let sample = bench.tensor("t", &[0.5, 0.5]);
        let order = CallOrder::signed(&interleaved(split), &[1, 1]).unwrap();
        let mut graphed = graph_callables(&bench.pool, layers, &[sample, sample], 2, Some(order)).unwrap();
        assert_eq!(bench.read(sums[0]), [0.0, 0.0], "warm-up leaves gradients alone");
        assert_eq!(graphed.reports()[0].graphs.len(), if split { 18 } else { 12 });
        for step in 0..3 {
            for sum in &sums {
                bench.device.upload(sum, &[0.0f32, 0.0]).unwrap();
            }
            let inputs: Vec<Tensor> = (0..3).map(|m| bench.tensor("t", &[m as f32, step as f32])).collect();
            let mut outputs = Vec::new();
            for &x in &inputs {
                let middle = graphed.forward(0, x).unwrap();
                outputs.push(graphed.forward(1, middle).unwrap());
            }
            for (m, &output) in outputs.iter().enumerate() {
                let (x, s) = (m as f32, step as f32);
                assert_eq!(bench.read(output), [9.0 * x, 9.0 * s], "outputs stay until their backward");
                let loss_grad = bench.tensor("t", &[1.0, 2.0]);
                let grad = graphed.backward(1, loss_grad).unwrap();
                assert_eq!(bench.read(grad), [1.0 + 3.0 * x, 2.0 + 3.0 * s]);
                let grad = graphed.backward(0, grad).unwrap();
                assert_eq!(bench.read(grad), [1.0 + 4.0 * x, 2.0 + 4.0 * s]);
                if split {
                    graphed.weight_gradients(1).unwrap();
                    graphed.weight_gradients(0).unwrap();
                }
            }
            assert_eq!(bench.read(sums[1]), [3.0, 6.0]);
            assert_eq!(bench.read(sums[0]), [3.0 + 9.0, 6.0 + 9.0 * step as f32]);
        }
    }
}

#[test]
fn layers_without_an_order_are_called_in_any_order() {
    let bench = bench();
    let (layers, sums) = layers(&bench, 3);
    let x = bench.tensor("t", &[1.0, 2.0]);
    let mut graphed: GraphedCallables<Tripling> = graph_callables(&bench.pool, layers, &[x, x, x], 1, None).unwrap();
    let graphs: Vec<usize> = graphed.reports().iter().map(|report| report.graphs.len()).collect();
    assert_eq!(graphs, [2; 3], "first and later microbatches do the same");
    let y = [2, 0, 1].map(|layer| graphed.forward(layer, x).unwrap());
    for output in y {
        assert_eq!(bench.read(output), [3.0, 6.0], "nothing is shared");
    }
    for layer in [1, 2, 0] {
        let grad = graphed.backward(layer, x).unwrap();
        assert_eq!(bench.read(grad), [2.0, 4.0]);
        assert_eq!(bench.read(sums[layer]), [1.0, 2.0]);
    }
    // Forward alone, as in evaluation.
    graphed.forward(0, x).unwrap();
    graphed.begin_step();
    graphed.forward(0, x).unwrap();
    graphed.backward(0, x).unwrap();
}

#[test]
fn an_order_shares_the_memory_of_what_is_not_in_use_at_once() {
    let plans = |order: &[f32]| {
        let bench = bench();
        let x = bench.tensor("t", &[1.0; 1024]);
        let layers = vec![Tripling { sum: x }];
        let order = CallOrder::signed(order, &[1]).unwrap();
        let graphed = graph_callables(&bench.pool, layers, &[x], 1, Some(order)).unwrap();
        graphed.reports()[0].memory.iter().map(|area| area.bytes).sum::<usize>()
    };
    let (in_turn, all_ahead) = (plans(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]), plans(&[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]));
    assert!(2 * in_turn < all_ahead + 4 * 1024 * 3, "{in_turn} {all_ahead}");
    assert!(in_turn < all_ahead, "{in_turn} {all_ahead}");
}

#[test]
fn samples_and_orders_that_do_not_fit_are_refused() {
    let bench = bench();
    let x = bench.tensor("t", &[1.0]);
    let refused = |layers: usize, samples: usize, order: Option<&[f32]>| {
        let layers: Vec<Tripling> = (0..layers).map(|_| Tripling { sum: x }).collect();
        let order = order.map(|order| CallOrder::signed(order, &[1, 1]).unwrap());
        match graph_callables(&bench.pool, layers, &vec![x; samples], 1, order) {
            Err(Error::Usage { problem, .. }) => problem,
            _ => String::new(),
        }
    };
    assert!(refused(2, 1, None).contains("1 sample for 2 layers"));
    assert!(refused(3, 3, Some(&[1.0, 2.0, -2.0, -1.0])).contains("the order has 2 layers, 3 were given"));
    for (order, words) in [
        (&[1.0, -1.0, -1.0][..], "call 2 is the backward of layer 0, and no forward comes before it"),
        (&[1.0, -1.5, -1.0], "call 1 is the weight gradients of layer 0, and no backward comes before it"),
        (&[1.0, 3.0], "of chunk 3, of 2 chunks"),
        (&[1.0, 0.25], "is neither k, -k nor -k - 0.5"),
        (&[1.0, 1.0, 2.0, 2.0, -1.0], "it ends before the backward of layer 0, microbatch 1"),
        (&[1.0, 2.0, -2.0, -1.0, -1.5], "it ends before the weight gradients of layer 1, microbatch 0"),
        (&[1.0, -1.0, 2.0, -2.0, 2.0, -2.0], "it has 2 forwards of layer 1 and 1 of layer 0"),
        (&[2.0, -2.0], "it has no forward of layer 0"),
    ] {
        assert_refused(CallOrder::signed(order, &[1, 1]), words);
    }
}
