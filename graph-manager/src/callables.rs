//! Layers as graphs, made ahead of time: `make_graphed_callables` of PyTorch and of Transformer Engine.

use std::collections::HashMap;
use std::ops::Range;

use common::format::counted;
use device::{DType, Tensor};

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::options::ManagerOptions;
use crate::order::{Call, CallOrder, Pass};
use crate::policy::{Instance, NoVariant, Policy};
use crate::pool::Pool;
use crate::report::Report;
use crate::tensor_tree::TensorTree;

/// Work with an explicit forward and backward: a layer, several, or a part of one. Implement it for every policy, with
/// `impl<P: Policy> Layer<P> for ..`: then it runs eagerly, in a manager's regions and in [`graph_callables`].
pub trait Layer<P: Policy> {
    /// What forward takes.
    type Input: TensorTree;
    /// What forward returns, and the structure of its gradient, which backward takes.
    type Output: TensorTree;
    /// What backward returns.
    type InputGrad: TensorTree;

    /// Output from input. What backward needs goes to [`StepContext::save_for_backward`]. A layer made of layers calls each
    /// within a [`StepContext::part`], in forward and backward.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_, P>, input: Self::Input) -> Result<Self::Output>;

    /// The input's gradient from the output's. Gradients of weights are added to memory of the layer's own, by
    /// [`StepContext::defer`] if they may be computed later.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_, P>, grad: Self::Output) -> Result<Self::InputGrad>;
}

/// The policy of [`GraphedCallables`]: every call is a graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct EveryCall {
    splits_backward: bool,
}

impl Policy for EveryCall {
    type Region = Call;
    type Mode = ();
    type Variant = NoVariant;

    fn instance(&self, call: Call) -> Option<Instance<Call>> {
        Some(Instance { microbatch: call.microbatch, first: Call { microbatch: 0, ..call }, chunk: call.layer })
    }

    fn saved_by(&self, call: Call) -> Option<Call> {
        Some(Call { pass: Pass::Forward, ..call })
    }

    fn deferred_by(&self, call: Call) -> Option<Call> {
        (self.splits_backward && call.pass != Pass::Forward).then_some(Call { pass: Pass::Backward, ..call })
    }
}

/// Layers whose forwards and backwards are graphs. Loss, optimizer and everything else stay outside and run eagerly.
///
/// Inputs and gradients are copied into buffers of the graphs, unless they lie there. An output stays until its backward
/// begins. An input's gradient stays until the next backward of its group begins. With an order, all layers are one group.
/// Without, each layer is a group of its own.
pub struct GraphedCallables<L> {
    layers: Vec<L>,
    groups: Vec<Group>,
}

/// Layers that share memory, and are called in one order.
struct Group {
    manager: CudaGraphManager<EveryCall>,
    layers: Range<usize>,
    order: CallOrder,
    /// Index of the next call in the order.
    next: usize,
}

/// Captures the forward and the backward of each layer, in memory planned for `order`: what is in use at different times
/// shares memory, so calls must come in this order. Without an order each layer has memory of its own, and layers may be
/// called in any order; only its own backward has to follow a layer's forward.
///
/// `samples` has an input for each layer, with the shapes and types that will come. Before the capture, `warm_up` passes,
/// at least one, run forwards on them, and backwards on gradients of 0: accumulated gradients of weights do not change.
///
/// ```
/// use device::ops::Add;
/// use device::{DType, Device, HostOptions, Tensor};
/// use graph_manager::{Layer, Policy, Pool, Result, StepContext, graph_callables};
///
/// /// `y = 2 x`.
/// struct Double;
///
/// impl<P: Policy> Layer<P> for Double {
///     type Input = Tensor;
///     type Output = Tensor;
///     type InputGrad = Tensor;
///
///     fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<Tensor> {
///         let y = cx.tensor("y", x.shape, DType::F32)?;
///         cx.run(Add { a: x, b: x, output: y })?;
///         Ok(y)
///     }
///
///     fn backward(&self, cx: &mut StepContext<'_, P>, grad: Tensor) -> Result<Tensor> {
///         Layer::<P>::forward(self, cx, grad)
///     }
/// }
///
/// let device = Device::host(HostOptions::default())?;
/// let area = device.allocate("x", 4 * 4)?;
/// let x = area.tensor("x", 0, [4], DType::F32);
/// device.upload(&x, &[3.0_f32; 4])?;
/// let pool = Pool::new(device.stream("compute"));
/// let mut graphed = graph_callables(&pool, vec![Double], &[x], 1, None)?;
/// let y = graphed.forward(0, x)?;
/// assert_eq!(device.download::<f32>(&y)?, [6.0; 4]);
/// let grad = graphed.backward(0, x)?; // any tensor of that shape
/// assert_eq!(device.download::<f32>(&grad)?, [6.0; 4]);
/// # Ok::<(), graph_manager::Error>(())
/// ```
///
/// # Errors
/// [`Error::Usage`] where samples, layers and order do not fit, or without warm-up; what a layer returns.
pub fn graph_callables<L: Layer<EveryCall>>(
    pool: &Pool,
    layers: Vec<L>,
    samples: &[L::Input],
    warm_up: usize,
    order: Option<CallOrder>,
) -> Result<GraphedCallables<L>> {
    if samples.len() != layers.len() {
        let problem = format!("{} for {}", counted(samples.len(), "sample"), counted(layers.len(), "layer"));
        return Err(Error::usage(problem, "give one sample input for each layer"));
    }
    let orders: Vec<(Range<usize>, CallOrder)> = match order {
        Some(order) => {
            let of_order = order.calls.iter().map(|call| call.layer + 1).max().unwrap_or(0);
            if of_order != layers.len() {
                let problem = format!("the order has {}, {} were given", counted(of_order, "layer"), layers.len());
                return Err(Error::usage(problem, "let the chunks' numbers of layers sum to the number of layers"));
            }
            vec![(0..layers.len(), order)]
        }
        None => (0..layers.len()).map(|layer| (layer..layer + 1, CallOrder::of_one(layer))).collect(),
    };
    let mut groups = Vec::new();
    for (range, order) in orders {
        let policy = EveryCall { splits_backward: order.calls.iter().any(|call| call.pass == Pass::WeightGradients) };
        let manager = CudaGraphManager::in_pool(pool, ManagerOptions::for_one_plan(warm_up), policy)?;
        let mut group = Group { manager, layers: range, order, next: 0 };
        group.capture(&layers, samples, warm_up)?;
        groups.push(group);
    }
    Ok(GraphedCallables { layers, groups })
}

impl<L: Layer<EveryCall>> GraphedCallables<L> {
    /// Replays the forward of a layer for its next microbatch.
    ///
    /// # Errors
    /// An out-of-order error that names the call that is due; an input of another shape.
    pub fn forward(&mut self, layer: usize, input: L::Input) -> Result<L::Output> {
        self.call(Pass::Forward, layer, input, L::forward)
    }

    /// Replays the backward of a layer for its next microbatch. `grad` is the gradient of what its forward returned.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn backward(&mut self, layer: usize, grad: L::Output) -> Result<L::InputGrad> {
        self.call(Pass::Backward, layer, grad, L::backward)
    }

    /// Replays what the backward of a layer has deferred for its next microbatch. Only with an order that has such calls.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn weight_gradients(&mut self, layer: usize) -> Result<()> {
        self.call(Pass::WeightGradients, layer, (), |_, cx, ()| cx.run_deferred())
    }

    /// What was captured, by group of layers that share memory.
    pub fn reports(&self) -> Vec<Report> {
        self.groups.iter().map(|group| group.manager.report()).collect()
    }

    fn call<I: TensorTree, O: TensorTree>(
        &mut self,
        pass: Pass,
        layer: usize,
        input: I,
        body: impl for<'m> FnOnce(&L, &mut StepContext<'m, EveryCall>, I) -> Result<O>,
    ) -> Result<O> {
        let Some(group) = self.groups.iter_mut().find(|group| group.layers.contains(&layer)) else {
            let problem = format!("layer {layer} was called, of {}", self.layers.len());
            return Err(Error::usage(problem, "count layers from 0"));
        };
        // A layer alone may go forward again, as in evaluation: nothing else has its memory.
        if group.order.calls.len() == 2 && pass == Pass::Forward {
            group.next = 0;
        }
        let done = |call: &&Call| (call.pass, call.layer) == (pass, layer);
        let microbatch = group.order.calls[..group.next].iter().filter(done).count();
        let output = group.manager.pass((), group.order.microbatches, true, |cx| {
            cx.position = group.next;
            cx.region(Call { pass, layer, microbatch }, input, |cx, input| body(&self.layers[layer], cx, input))
        })?;
        group.next = (group.next + 1) % group.order.calls.len();
        Ok(output)
    }
}

impl Group {
    /// Goes through the order: recorded, `warm_up` times eagerly, and once to capture it.
    fn capture<L: Layer<EveryCall>>(&mut self, layers: &[L], samples: &[L::Input], warm_up: usize) -> Result<()> {
        let Group { manager, order, .. } = self;
        let (microbatches, device) = (order.microbatches, manager.pool.device().clone());
        let mut largest = 0;
        let mut virtual_zeros = |of: Tensor| {
            largest = largest.max(of.bytes());
            device.virtual_tensor("gradient", of.shape, of.dtype)
        };
        manager.record((), microbatches, &mut |cx| pass(cx, order, layers, samples, &mut virtual_zeros))?;
        let area = device.allocate("gradients of 0", largest)?;
        let zero = area.tensor("gradients of 0", 0, [largest], DType::U8);
        device.zero(&zero)?;
        for _ in 0..=warm_up {
            manager.step((), microbatches, &mut |cx| {
                pass(cx, order, layers, samples, &mut |of| area.place(zero.buffer, 0, of.shape, of.dtype))
            })?;
        }
        // The area of zeros is given back here, and the copies from it must be done.
        manager.pool.compute().synchronize()?;
        Ok(())
    }
}

/// One pass through an order, with sample inputs, and `zeros` for gradients of outputs.
fn pass<L: Layer<EveryCall>>(
    cx: &mut StepContext<'_, EveryCall>,
    order: &CallOrder,
    layers: &[L],
    samples: &[L::Input],
    zeros: &mut dyn FnMut(Tensor) -> Tensor,
) -> Result<()> {
    let mut outputs: HashMap<(usize, usize), L::Output> = HashMap::new();
    let mut last_grad: Option<L::InputGrad> = None;
    for &call in &order.calls {
        let at = (call.layer, call.microbatch);
        let layer = &layers[call.layer];
        match call.pass {
            Pass::Forward => {
                let sample = samples[call.layer].clone();
                outputs.insert(at, cx.region(call, sample, |cx, input| layer.forward(cx, input))?);
            }
            Pass::Backward => {
                let Some(output) = outputs.remove(&at) else { continue };
                cx.keep(&(output.clone(), last_grad.take()))?;
                let grad = output.map(&mut |_, tensor| Ok(zeros(tensor)))?;
                last_grad = Some(cx.region(call, grad, |cx, grad| layer.backward(cx, grad))?);
            }
            Pass::WeightGradients => cx.region(call, (), |cx, ()| cx.run_deferred())?,
        }
    }
    cx.keep(&last_grad)
}
