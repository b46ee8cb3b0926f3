//! Layers as graphs, made ahead of time: `make_graphed_callables` of PyTorch and of Transformer Engine.

use std::ops::Range;

use super::group::CallGroup;
use super::hooks::CallHooks;
use super::layer::Layer;
use crate::call_order::{CallOrder, Phase};
use crate::error::{Error, Result};
use crate::manager::check_warm_up;
use crate::memory::Pool;
use crate::report::{GraphDot, Report};
use crate::side_stream::SideStream;
use crate::training::TrainingPolicy;
use crate::verify::{Verification, Verified};
use crate::words::counted;

/// Layers with forwards and backwards as graphs. Loss, optimizer and everything else stay outside and run eagerly.
///
/// Inputs and gradients are copied into buffers of the graphs, unless they lie there.
///
/// | | with an order | without |
/// |---|---|---|
/// | a call | is the next one of the order | is a forward of any layer, or the backward of the layer's forward before it |
/// | memory | is planned for the order: all layers share it | each layer has its own |
/// | [first microbatch](crate::StepContext::is_first_microbatch) | the order has it | [`forward`](GraphedCallables::forward), but not [`forward_later`](GraphedCallables::forward_later) |
/// | [last microbatch](crate::StepContext::is_last_microbatch) | the order has it | every one |
/// | an output stays | until its backward begins; of a layer without backwards until the layer's next forward; at most until the next step | until the layer's next call |
/// | an input's gradient stays | until the next backward begins, at most until the next step | until the layer's next call |
pub struct GraphedCallables<L: Layer<TrainingPolicy>> {
    layers: Vec<L>,
    groups: Vec<CallGroup>,
    hooks: Option<Box<dyn CallHooks<L>>>,
}

/// Captures the forward and the backward of each layer, in memory planned for `order`: buffers in use at different
/// times share memory, so calls must come in this order. Without an order each layer has memory of its own, and layers
/// may be called in any order, but a layer's forward must come before its backward. An order of forwards alone makes
/// graphs for inference.
///
/// `samples` has an input for each layer, with the shapes and types that will come. Before the capture, forwards run on
/// them, and backwards on gradients of 0, `warm_up` times, at least once. Afterwards all memory of the caller's that
/// layers wrote, such as gradients, is as it was before; until then the host keeps a copy of it. Layers of several types
/// form one list when [boxed](Layer::boxed).
///
/// A layer may do some work once a step, such as making copies of its weights in 8 bits: it asks
/// [`is_first_microbatch`](crate::StepContext::is_first_microbatch). With an order each microbatch has graphs of its
/// own. Without, a layer that asks has two of each: for [`forward`](GraphedCallables::forward) and for
/// [`forward_later`](GraphedCallables::forward_later), with their backwards. What the first leaves for later ones lies in
/// memory of the layer's own.
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
/// [`Error::Usage`] if samples, layers and order do not fit, or without warm-up; [`Error::Frozen`] if a layer does something
/// else when it is called again; without an order also if later microbatches
/// use memory of the step that the first one took; errors of a layer.
pub fn graph_callables<L: Layer<TrainingPolicy>>(
    pool: &Pool,
    layers: Vec<L>,
    samples: &[L::Input],
    warm_up: usize,
    order: Option<CallOrder>,
) -> Result<GraphedCallables<L>> {
    check_warm_up("graph_callables has a `warm_up`", warm_up)?;
    if samples.len() != layers.len() {
        let problem = format!("{} for {}", counted(samples.len(), "sample"), counted(layers.len(), "layer"));
        return Err(Error::usage(problem, "give one sample input for each layer"));
    }
    let of_groups: Vec<(Range<usize>, Option<CallOrder>)> = match order {
        Some(order) => {
            let of_order = order.layers();
            if of_order != layers.len() {
                let problem = format!("the order has {}, {} were given", counted(of_order, "layer"), layers.len());
                return Err(Error::usage(problem, "let the order call each layer"));
            }
            vec![(0..layers.len(), Some(order))]
        }
        None => (0..layers.len()).map(|layer| (layer..layer + 1, None)).collect(),
    };
    let sums = SideStream::background(pool.device(), "sums");
    let capture = |(range, order)| CallGroup::capture(pool, &layers, samples, range, order, warm_up, &sums);
    let groups = of_groups.into_iter().map(capture).collect::<Result<_>>()?;
    Ok(GraphedCallables { layers, groups, hooks: None })
}

impl<L: Layer<TrainingPolicy>> GraphedCallables<L> {
    /// Has `hooks` called around each call, in place of the hooks before.
    pub fn set_hooks(&mut self, hooks: impl CallHooks<L> + 'static) {
        self.hooks = Some(Box::new(hooks));
    }

    /// Begins a step: the next call is the first of the order. An order that has ended begins again by itself, so this is for
    /// the step after one that was given up, such as after an error. The next call counts as the first microbatch's, so it
    /// overwrites sums. Without an order it is also for forwards that no backward follows, such as those of an evaluation.
    pub fn begin_step(&mut self) {
        self.groups.iter_mut().for_each(CallGroup::begin_step);
    }

    /// Replays the forward of a layer: with an order for its next microbatch, without for a step's first one.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] if another call is due; [`Error::Changed`] for an input of another shape; errors of a hook.
    pub fn forward(&mut self, layer: usize, input: L::Input) -> Result<L::Output> {
        let group = self.group(layer)?;
        self.groups[group].begin(0);
        self.run_forward(group, layer, input)
    }

    /// Replays the forward of a layer for a microbatch after a step's first one: [the
    /// layer](crate::StepContext::is_first_microbatch) uses the copies of weights that the first one has made, and the
    /// backward adds to its sums. Only without an order: an order counts microbatches.
    ///
    /// # Errors
    /// [`Error::Usage`] with an order; as [`GraphedCallables::forward`].
    pub fn forward_later(&mut self, layer: usize, input: L::Input) -> Result<L::Output> {
        let group = self.group(layer)?;
        if !self.groups[group].is_alone {
            let problem = format!("forward_later of layer {layer} was called, and the order counts the microbatches");
            return Err(Error::usage(problem, "call GraphedCallables::forward for every microbatch"));
        }
        self.groups[group].begin(1);
        self.run_forward(group, layer, input)
    }

    fn run_forward(&mut self, group: usize, layer: usize, input: L::Input) -> Result<L::Output> {
        let group = &mut self.groups[group];
        let call = group.due(Phase::Forward, layer)?;
        self.hooks.as_mut().map_or(Ok(()), |hooks| hooks.before_forward(call, &input))?;
        let output = group.run(call, &input)?;
        self.hooks.as_mut().map_or(Ok(()), |hooks| hooks.after_forward(call, &output))?;
        Ok(output)
    }

    /// Replays the backward of a layer: with an order for its next microbatch, without for its last forward. `grad` is
    /// the gradient of the forward's output.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn backward(&mut self, layer: usize, grad: L::Output) -> Result<L::InputGrad> {
        let group = self.group(layer)?;
        let group = &mut self.groups[group];
        let call = group.due(Phase::Backward, layer)?;
        self.hooks.as_mut().map_or(Ok(()), |hooks| hooks.before_backward(call, &grad))?;
        let input_grad = group.run(call, &grad)?;
        self.hooks.as_mut().map_or(Ok(()), |hooks| hooks.after_backward(call, &input_grad))?;
        Ok(input_grad)
    }

    /// Replays the work that the backward of a layer has deferred, for the layer's next microbatch. Only with an order
    /// that has such calls.
    ///
    /// # Errors
    /// As [`GraphedCallables::forward`].
    pub fn weight_gradients(&mut self, layer: usize) -> Result<()> {
        let group = self.group(layer)?;
        let group = &mut self.groups[group];
        let call = group.due(Phase::WeightGradients, layer)?;
        group.run::<()>(call, &())?;
        self.hooks.as_mut().map_or(Ok(()), |hooks| hooks.after_weight_gradients(call))
    }

    /// Runs all calls with graphs and, from the same state, by submitting the operations, and compares what each call
    /// wrote: its result, and memory of the caller's. `inputs` and `grads` have an input and a gradient of the output
    /// for each layer; the calls of all microbatches get these. Afterwards the state is as before, and a step begins
    /// anew.
    ///
    /// # Errors
    /// [`Error::Usage`] for another number of inputs or gradients; [`Error::Changed`] for one of another shape; errors
    /// of the device.
    pub fn verify(&mut self, inputs: &[L::Input], grads: &[L::Output], how: &Verification<'_>) -> Result<Verified> {
        if (inputs.len(), grads.len()) != (self.layers.len(), self.layers.len()) {
            let problem = format!(
                "{} and {} were given for {}",
                counted(inputs.len(), "input"),
                counted(grads.len(), "gradient"),
                counted(self.layers.len(), "layer")
            );
            return Err(Error::usage(problem, "give an input and a gradient of the output for each layer"));
        }
        let mut all = (0, 0);
        for group in &mut self.groups {
            match group.verify(inputs, grads, how)? {
                Verified::Same { tensors, bytes } => all = (all.0 + tensors, all.1 + bytes),
                other => return Ok(other),
            }
        }
        Ok(Verified::Same { tensors: all.0, bytes: all.1 })
    }

    /// The reports on the captured graphs, one for each group of layers that share memory.
    pub fn reports(&self) -> Vec<Report> {
        self.groups.iter().map(CallGroup::report).collect()
    }

    /// The captured graphs as drawings: those of each group of layers that share memory, in turn. See
    /// [`CudaGraphManager::dots`](crate::CudaGraphManager::dots).
    ///
    /// # Errors
    /// As [`CudaGraphManager::dots`](crate::CudaGraphManager::dots).
    pub fn dots(&self) -> Result<Vec<GraphDot>> {
        let groups: Vec<_> = self.groups.iter().map(CallGroup::dots).collect::<Result<_>>()?;
        Ok(groups.into_iter().flatten().collect())
    }

    /// The index of a layer's group.
    fn group(&self, layer: usize) -> Result<usize> {
        let group = self.groups.iter().position(|group| group.layers.contains(&layer));
        group.ok_or_else(|| {
            let problem = format!("layer {layer} was called, of {}", counted(self.layers.len(), "layer"));
            Error::usage(problem, "count layers from 0")
        })
    }
}
