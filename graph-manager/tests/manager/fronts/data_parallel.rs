//! Graphed layers whose ranks sum their gradients on a side stream, as PyTorch's DDP does.
#![allow(unsafe_code)]

use std::rc::Rc;

use device::ops::{Add, Collective, CollectiveKind, Copy};
use device::{Communicator, Request, Tensor};
use graph_manager::{CallOrder, Layer, Policy, Result, StepContext, graph_callables};

use super::double::Double;
use crate::named::bench;
use crate::toy::on_gpu;

/// The first of two ranks. The second has the same values, so a sum is twice them.
#[derive(Debug)]
struct Twins;

struct Twice(Tensor);

impl Request for Twice {
    fn wait(self: Box<Self>) -> device::Result<()> {
        // SAFETY: the tensor is f32 in live memory of the host, and nothing else uses it before this call has ended.
        let values = unsafe { std::slice::from_raw_parts_mut(self.0.address as *mut f32, self.0.elements()) };
        values.iter_mut().for_each(|value| *value *= 2.0);
        Ok(())
    }
}

impl Communicator for Twins {
    fn name(&self) -> &str {
        "twins"
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn start(&self, _: CollectiveKind, _: &Tensor, output: &Tensor) -> device::Result<Box<dyn Request>> {
        Ok(Box::new(Twice(*output)))
    }
}

/// `y = 2 x`. The gradient of its weight is the sum of the outputs' gradients, over microbatches and ranks.
struct OnRanks {
    ranks: Rc<dyn Communicator>,
    grad: Tensor,
}

impl<P: Policy> Layer<P> for OnRanks {
    type Input = Tensor;
    type Output = Tensor;
    type InputGrad = Tensor;
    type Saved = ();

    fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
        Double.forward(cx, x)
    }

    fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
        match cx.is_first_microbatch() {
            true => cx.run(Copy { input: grad, output: self.grad })?,
            false => cx.run(Add { a: self.grad, b: grad, output: self.grad })?,
        }
        if cx.is_last_microbatch() {
            let sum = Collective::in_place(CollectiveKind::AllReduceSum, self.ranks.clone(), self.grad);
            cx.fork(cx.side_stream(), [sum.into()])?.leave();
        }
        Double.backward(cx, (), grad)
    }
}

#[test]
fn gradients_are_summed_over_ranks_within_the_graphs_of_backwards() {
    if on_gpu() {
        return; // The second rank is memory of the host.
    }
    let bench = bench();
    let (x, grads, weight_grads) = (bench.one, [3.0, 5.0].map(|value| bench.filled(value)), [bench.x, bench.y]);
    let layers = || weight_grads.map(|grad| OnRanks { ranks: Rc::new(Twins), grad }).into();
    // Two chunks of a layer each, and both microbatches in flight.
    let order = CallOrder::signed(&[1.0, 2.0, 1.0, 2.0, -2.0, -1.0, -2.0, -1.0], &[1, 1]).unwrap();
    let mut graphed = graph_callables(&bench.pool, layers(), &[x; 2], 1, Some(order)).unwrap();
    for _ in 0..3 {
        for _ in 0..2 {
            let middle = graphed.forward(0, x).unwrap();
            assert_eq!(bench.value(graphed.forward(1, middle).unwrap()), 4.0);
        }
        for grad in grads {
            let middle = graphed.backward(1, grad).unwrap();
            assert_eq!(bench.value(graphed.backward(0, middle).unwrap()), 4.0 * bench.value(grad));
        }
        // The second layer gets 3 and 5, the first one twice that; of two ranks.
        assert_eq!(weight_grads.map(|grad| bench.value(grad)), [2.0 * 2.0 * 8.0, 2.0 * 8.0]);
    }
    let mut graphed = graph_callables(&bench.pool, layers(), &[x; 2], 1, None).unwrap();
    for grad in grads {
        let middle = graphed.forward(0, x).unwrap();
        graphed.forward(1, middle).unwrap();
        let middle = graphed.backward(1, grad).unwrap();
        graphed.backward(0, middle).unwrap();
        assert_eq!(weight_grads.map(|of| bench.value(of)), [2.0 * 2.0 * bench.value(grad), 2.0 * bench.value(grad)]);
    }
}
