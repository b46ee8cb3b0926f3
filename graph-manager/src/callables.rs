//! Layers as graphs, made ahead of time: `make_graphed_callables` of PyTorch and of Transformer Engine.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use common::format::counted;
use device::{CheckError, DType, Tensor};

use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::options::ManagerOptions;
use crate::order::{Call, CallOrder, Phase};
use crate::passes::Sums;
use crate::policy::{Instance, Policy};
use crate::pool::Pool;
use crate::program::Part;
use crate::report::Report;
use crate::run::Run;
use crate::side_stream::SideStream;
use crate::tensor_tree::TensorTree;

/// Work with an explicit forward and backward: a layer, several, or a part of one. Implement it for every policy, with
/// `impl<P: Policy> Layer<P> for ..`: then it runs eagerly, in a manager's regions and in [`graph_callables`].
pub trait Layer<P: Policy> {
    /// The input of forward.
    type Input: TensorTree;
    /// The output of forward. Its gradient, the input of backward, has the same structure.
    type Output: TensorTree;
    /// The output of backward.
    type InputGrad: TensorTree;
    /// Values that forward leaves for backward, such as the tensors that it needs.
    type Saved;

    /// Computes the output from the input, and returns the values that backward needs too.
    ///
    /// # Errors
    /// Errors of the device.
    fn forward(&self, cx: &mut StepContext<'_, P>, input: Self::Input) -> Result<(Self::Output, Self::Saved)>;

    /// Computes the input's gradient from the output's and from the values that forward left. Gradients of weights are
    /// added to memory of the layer's own. If no later operation of the backward uses the same memory, these additions
    /// run next to the rest of the backward. If the order has calls for weight gradients, they run there.
    ///
    /// # Errors
    /// Errors of the device.
    fn backward(&self, cx: &mut StepContext<'_, P>, saved: Self::Saved, grad: Self::Output) -> Result<Self::InputGrad>;
}

/// The policy of [`GraphedCallables`]: every call is a graph.
#[derive(Clone, Copy, Debug, Default)]
pub struct EveryCall;

impl Policy for EveryCall {
    type Region = Call;
    type Mode = ();

    fn instance(&self, call: Call) -> Option<Instance<Call>> {
        Some(Instance { microbatch: call.microbatch, first: Call { microbatch: 0, ..call }, chunk: call.layer })
    }
}

/// Layers with their forwards and backwards as graphs. Loss, optimizer and everything else stay outside and run
/// eagerly.
///
/// Inputs and gradients are copied into buffers of the graphs, unless they lie there. An output stays until its
/// backward begins. An input's gradient stays until the next backward of its group begins. With an order, all layers
/// are one group. Without, each layer is a group of its own.
pub struct GraphedCallables<L> {
    layers: Vec<L>,
    groups: Vec<Group>,
}

/// Layers that share memory, and are called in one order.
struct Group {
    manager: CudaGraphManager<EveryCall>,
    layers: Range<usize>,
    order: CallOrder,
    /// By call: the index of its region, and its result with tensors of the recording.
    recorded: Vec<(usize, Box<dyn Any>)>,
    /// Index of the next call in the order.
    next: usize,
}

/// Captures the forward and the backward of each layer, in memory planned for `order`: buffers in use at different
/// times share memory, so calls must come in this order. Without an order each layer has memory of its own, and layers
/// may be called in any order, but a layer's forward must come before its backward.
///
/// `samples` has an input for each layer, with the shapes and types that will come. Before the capture, forwards run on
/// them, and backwards on gradients of 0, `warm_up` times, at least once: accumulated gradients of weights do not
/// change.
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
///     type Saved = ();
///
///     fn forward(&self, cx: &mut StepContext<'_, P>, x: Tensor) -> Result<(Tensor, ())> {
///         let y = cx.tensor("y", x.shape, DType::F32)?;
///         cx.run(Add { a: x, b: x, output: y })?;
///         Ok((y, ()))
///     }
///
///     fn backward(&self, cx: &mut StepContext<'_, P>, (): (), grad: Tensor) -> Result<Tensor> {
///         Ok(Layer::<P>::forward(self, cx, grad)?.0)
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
/// [`Error::Usage`] if samples, layers and order do not fit, or without warm-up; errors of a layer.
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
    let sums = SideStream::background(pool.device(), "sums");
    for (range, order) in orders {
        let manager = CudaGraphManager::in_pool(pool, ManagerOptions::for_one_plan(warm_up), EveryCall)?;
        let mut group = Group { manager, layers: range, order, recorded: Vec::new(), next: 0 };
        group.capture(&layers, samples, warm_up, &sums)?;
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
        self.call(Phase::Forward, layer, &input)
    }

    /// Replays the backward of a layer for its next microbatch. `grad` is the gradient of its forward's output.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn backward(&mut self, layer: usize, grad: L::Output) -> Result<L::InputGrad> {
        self.call(Phase::Backward, layer, &grad)
    }

    /// Replays the work that the backward of a layer has deferred, for its next microbatch. Only with an order that has
    /// such calls.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn weight_gradients(&mut self, layer: usize) -> Result<()> {
        self.call(Phase::WeightGradients, layer, &())
    }

    /// The reports on the captured graphs, one for each group of layers that share memory.
    pub fn reports(&self) -> Vec<Report> {
        self.groups.iter().map(|group| group.manager.report()).collect()
    }

    fn call<O: TensorTree>(&mut self, phase: Phase, layer: usize, input: &impl TensorTree) -> Result<O> {
        let Some(group) = self.groups.iter_mut().find(|group| group.layers.contains(&layer)) else {
            let problem = format!("layer {layer} was called, of {}", self.layers.len());
            return Err(Error::usage(problem, "count layers from 0"));
        };
        // A layer alone may go forward again, as in evaluation: nothing else has its memory.
        if group.order.calls.len() == 2 && phase == Phase::Forward {
            group.next = 0;
        }
        group.call(phase, layer, input)
    }
}

impl Group {
    /// Makes the list of the order, and runs it: `warm_up` times eagerly, and once to capture it.
    fn capture<L: Layer<EveryCall>>(
        &mut self,
        layers: &[L],
        samples: &[L::Input],
        warm_up: usize,
        sums: &Rc<SideStream>,
    ) -> Result<()> {
        let Group { manager, order, recorded, .. } = self;
        let (microbatches, device) = (order.microbatches, manager.pool.device().clone());
        // Gradients of 0 have memory once the largest is known.
        let (mut largest, mut made) = (0, HashSet::new());
        let mut zeros = |of: Tensor| {
            largest = largest.max(of.bytes());
            let zeros = device.virtual_tensor("gradient", of.shape, of.dtype);
            made.insert(zeros.buffer);
            zeros
        };
        let mut outputs = Vec::new();
        let has_later_sums = order.calls.iter().any(|call| call.phase == Phase::WeightGradients);
        manager.record((), microbatches, &mut |cx| {
            cx.set_passes(vec![Box::new(Sums::new(sums.clone(), has_later_sums))]);
            outputs = pass(cx, order, layers, samples, &mut zeros)?;
            Ok(())
        })?;
        let regions = manager.outermost((), microbatches);
        *recorded = regions.into_iter().zip(outputs).collect();
        let area = device.allocate("gradients of 0", largest)?;
        let zero = area.tensor("gradients of 0", 0, [largest], DType::U8);
        device.zero(&zero)?;
        let input = |_, _, recorded: Tensor| match made.contains(&recorded.buffer) {
            true => area.place(zero.buffer, 0, recorded.shape, recorded.dtype),
            false => recorded,
        };
        for _ in 0..=warm_up {
            let unrecorded = &mut |_: &mut StepContext<'_, EveryCall>| unreachable!("its list was made above");
            manager.step_from::<()>((), microbatches, unrecorded, &input)?;
        }
        // The area of zeros is given back here, and the copies from it must be done.
        manager.pool.compute().synchronize()?;
        Ok(())
    }

    /// Runs the next call of the order, if it is this one.
    fn call<O: TensorTree>(&mut self, phase: Phase, layer: usize, input: &impl TensorTree) -> Result<O> {
        let Group { manager, order, recorded, next, .. } = self;
        let done = |call: &&Call| (call.phase, call.layer) == (phase, layer);
        let microbatch = order.calls[..*next].iter().filter(done).count();
        let (call, expected) = (Call { phase, layer, microbatch }, order.calls[*next]);
        if call != expected {
            let (position, expected, actual) = (*next, expected.to_string(), call.to_string());
            return Err(device::Error::from(CheckError::OutOfOrder { position, expected, actual }).into());
        }
        let (region, output) = &recorded[*next];
        let inputs = manager.check_inputs((), order.microbatches, *region, input)?;
        let replaced = |_, number: usize, _| inputs[number];
        let run = Run { part: Part::Visit(*region as u32), input: &replaced, ..Run::all(true) };
        let key = manager.step_key((), order.microbatches);
        manager.run(key, order.microbatches, &run, None)?;
        let Some(output) = output.downcast_ref::<O>() else { unreachable!("a call returns what it was recorded with") };
        let binding = manager.binding(key, order.microbatches);
        let program = &manager.states[&key].programs[&order.microbatches];
        let output = output.map(&mut |_, tensor| Ok(binding.bound(program, tensor)))?;
        *next = (*next + 1) % order.calls.len();
        Ok(output)
    }
}

impl CudaGraphManager<EveryCall> {
    /// The regions of a recorded step that are in no other.
    fn outermost(&self, mode: (), microbatches: usize) -> Vec<usize> {
        let visits = &self.states[&self.step_key(mode, microbatches)].programs[&microbatches].visits;
        (0..visits.len()).filter(|visit| visits[*visit].outer().is_none()).collect()
    }

    /// The tensors of an input, if a region was recorded with such.
    fn check_inputs(
        &self,
        mode: (),
        microbatches: usize,
        region: usize,
        input: &impl TensorTree,
    ) -> Result<Vec<Tensor>> {
        let program = &self.states[&self.step_key(mode, microbatches)].programs[&microbatches];
        let (mut expected, mut inputs) = (program.inputs(region), Vec::new());
        let refuse = |problem: String| {
            Error::changed(program.visits[region].region, problem, "pass inputs of the shapes that were recorded")
        };
        input.map(&mut |name, tensor| {
            if expected.next() != Some((tensor.shape, tensor.dtype)) {
                return Err(refuse(format!("input `{name}` has another number, shape or type than when recorded")));
            }
            inputs.push(tensor);
            Ok(tensor)
        })?;
        match expected.next() {
            None => Ok(inputs),
            Some(_) => Err(refuse("it has fewer inputs than when recorded".into())),
        }
    }
}

/// The calls of an order, each as a region, on sample inputs and on `zeros` for gradients of outputs. Returns the
/// result of each call.
fn pass<L: Layer<EveryCall>>(
    cx: &mut StepContext<'_, EveryCall>,
    order: &CallOrder,
    layers: &[L],
    samples: &[L::Input],
    zeros: &mut dyn FnMut(Tensor) -> Tensor,
) -> Result<Vec<Box<dyn Any>>> {
    let mut in_flight: HashMap<(usize, usize), (L::Output, L::Saved)> = HashMap::new();
    let mut last_grad: Option<L::InputGrad> = None;
    let mut returned: Vec<Box<dyn Any>> = Vec::new();
    for &call in &order.calls {
        let at = (call.layer, call.microbatch);
        let layer = &layers[call.layer];
        match call.phase {
            Phase::Forward => {
                let sample = samples[call.layer].clone();
                let (output, saved) = cx.region(call, sample, |cx, input| layer.forward(cx, input))?;
                returned.push(Box::new(output.clone()));
                in_flight.insert(at, (output, saved));
            }
            Phase::Backward => {
                let Some((output, saved)) = in_flight.remove(&at) else {
                    unreachable!("an order has the forward first")
                };
                cx.keep(&(output.clone(), last_grad.take()))?;
                let grad = output.map(&mut |_, tensor| Ok(zeros(tensor)))?;
                let grad = cx.region(call, grad, |cx, grad| layer.backward(cx, saved, grad))?;
                returned.push(Box::new(grad.clone()));
                last_grad = Some(grad);
            }
            Phase::WeightGradients => {
                cx.region(call, (), |_, ()| Ok(()))?;
                returned.push(Box::new(()));
            }
        }
    }
    cx.keep(&last_grad)?;
    Ok(returned)
}
