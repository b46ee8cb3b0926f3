//! Graphed layers that share memory, and are called in one order.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use device::{Area, DType, Shape, Snapshot, Tensor};

use super::layer::Layer;
use crate::call_order::{Call, CallOrder, Phase};
use crate::code::StepContext;
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::inputs::{difference, inputs};
use crate::manager::CudaGraphManager;
use crate::memory::Pool;
use crate::options::{CheckReplays, ManagerOptions};
use crate::passes::Sums;
use crate::program::{Extent, Program, refuse_change};
use crate::report::{GraphDot, Report};
use crate::side_stream::SideStream;
use crate::steps::Run;
use crate::tensor_tree::TensorTree;
use crate::training::{TrainingPolicy, TrainingRegion};
use crate::verify::{Looks, Verification, Verified};

/// The only kind of step that a group has.
const MODE: &str = "calls";

/// Layers that share memory, and are called in one order.
pub(crate) struct CallGroup {
    manager: CudaGraphManager<TrainingPolicy>,
    pub(crate) layers: Range<usize>,
    /// One layer, without an order of the caller's: `order` has its forward and backward, and once more for later
    /// microbatches if these do something else.
    pub(crate) is_alone: bool,
    order: CallOrder,
    /// By call: the index of its region, and its result with tensors of the recording.
    recorded: Vec<(usize, Box<dyn Any>)>,
    /// Index of the next call in the order.
    next: usize,
    /// Without an order: forwards since the last backward.
    forwards: usize,
}

/// The calls of an order as a list.
struct Listed {
    program: Program<TrainingRegion>,
    /// By call: its result with tensors of the recording.
    results: Vec<Box<dyn Any>>,
    /// By call: the index of its region.
    regions: Vec<usize>,
}

/// Stand-ins for gradients of 0, one for each shape and type. They have memory once the largest is known.
#[derive(Default)]
struct Zeros {
    largest: usize,
    made: HashMap<(Shape, DType), Tensor>,
}

impl CallGroup {
    /// Makes the list of an order, and runs the list: `warm_up` times eagerly, and once to capture it. Without an order
    /// there is one layer.
    pub(crate) fn capture<L: Layer<TrainingPolicy>>(
        pool: &Pool,
        layers: &[L],
        samples: &[L::Input],
        range: Range<usize>,
        order: Option<CallOrder>,
        warm_up: usize,
        sums: &Rc<SideStream>,
    ) -> Result<CallGroup> {
        // No step calls the layers again: their list is compared here.
        let options = ManagerOptions { check_replays: CheckReplays::Never, ..ManagerOptions::for_one_plan(warm_up) };
        let mut manager = CudaGraphManager::in_pool(pool, options, TrainingPolicy::default())?;
        let mut zeros = Zeros::default();
        let is_alone = order.is_none();
        let mut list = |order: &CallOrder| {
            let later = order.calls.iter().any(|call| call.phase == Phase::WeightGradients);
            let mut results = Vec::new();
            let (program, ()) = manager.recorded(order.microbatches, MODE, &mut |cx| {
                cx.set_passes(vec![Box::new(Sums::new(sums.clone(), later))]);
                cx.every_microbatch_is_last = is_alone;
                results = pass(cx, order, is_alone, layers, samples, &mut zeros)?;
                Ok(())
            })?;
            let regions = (0..program.visits.len()).filter(|at| program.visits[*at].outer().is_none()).collect();
            Ok::<_, Error>(Listed { program, results, regions })
        };
        let (order, listed) = match order {
            Some(order) => {
                let listed = list(&order)?;
                (order, listed)
            }
            None => {
                let (once, twice) = (CallOrder::of_one(range.start, 1), CallOrder::of_one(range.start, 2));
                let listed = list(&twice)?;
                let [forward, backward, later_forward, later_backward] = listed.regions[..] else {
                    unreachable!("an order of four calls has four regions")
                };
                let program = &listed.program;
                match program.does_the_same(forward, later_forward) && program.does_the_same(backward, later_backward) {
                    true => {
                        let listed = list(&once)?;
                        (once, listed)
                    }
                    false => {
                        refuse_planned_copies(program, later_forward, range.start)?;
                        (twice, listed)
                    }
                }
            }
        };
        let Listed { program, results, regions } = listed;
        {
            let (device, made) = (pool.device(), pool.device().buffers_made());
            let _forgotten = Finally(|| device.forget_buffers_since(made));
            refuse_change(&program, &list(&order)?.program)?;
        }
        manager.plan(MODE, program, Box::new(()))?;
        let recorded = regions.into_iter().zip(results).collect();
        let mut group = CallGroup { manager, layers: range, is_alone, order, recorded, next: 0, forwards: 0 };
        group.warm_up_and_capture(warm_up, zeros)?;
        Ok(group)
    }

    fn warm_up_and_capture(&mut self, warm_up: usize, Zeros { largest, made }: Zeros) -> Result<()> {
        let device = self.manager.pool.device().clone();
        // An order of forwards alone needs none.
        let largest = largest.max(1);
        let area: Area = device.allocate("gradients of 0", largest)?;
        let zero = area.tensor("gradients of 0", 0, [largest], DType::U8);
        device.zero(&zero)?;
        let made: HashSet<_> = made.values().map(|tensor| tensor.buffer).collect();
        let input = |_, _, recorded: Tensor| match made.contains(&recorded.buffer) {
            true => area.place(zero.buffer, 0, recorded.shape, recorded.dtype),
            false => recorded,
        };
        let microbatches = self.order.microbatches;
        let key = self.manager.step_key(MODE, microbatches);
        // Layers may count, overwrite or take maxima: what they wrote for samples must not stay.
        let mut before = Snapshot::default();
        device.snapshot(&mut before, self.manager.states[&key].programs[&microbatches].state())?;
        let warmed = (0..=warm_up).try_for_each(|_| {
            let unrecorded = &mut |_: &mut StepContext<'_, TrainingPolicy>| unreachable!("its list was made above");
            self.manager.step_from::<()>(MODE, microbatches, unrecorded, &input)
        });
        // It waits for all work, so the copies from the area of zeros, which is given back here, are done.
        let restored = device.restore(&before);
        warmed?;
        Ok(restored?)
    }

    /// Before a forward: without an order, it may come at any time. Its kind is 0 for a step's first microbatch, 1 for
    /// a later one.
    pub(crate) fn begin(&mut self, kind: usize) {
        if self.is_alone {
            self.next = 2 * kind.min(self.order.microbatches - 1);
        }
    }

    /// The next call, if the call is of that phase and layer.
    pub(crate) fn due(&self, phase: Phase, layer: usize) -> Result<Call> {
        let due = self.order.calls[self.next];
        if phase == Phase::Backward && self.forwards > 1 {
            let problem = format!(
                "the backward of layer {layer} was called after {} forwards of it, and it has the values of the last one alone",
                self.forwards
            );
            let fix = "give graph_callables the order of your calls (CallOrder::recorded), or call \
                       GraphedCallables::begin_step after forwards that no backward follows";
            return Err(Error::usage(problem, fix));
        }
        if (due.phase, due.layer) == (phase, layer) {
            return Ok(due);
        }
        if self.is_alone {
            let (problem, fix) = match phase {
                Phase::WeightGradients => (
                    format!("the weight gradients of layer {layer} were called, and its backward computes them"),
                    "leave the call out, or give graph_callables an order with such calls",
                ),
                _ => (
                    format!("the {phase} of layer {layer} was called, and no forward comes before it"),
                    "call the layer's forward before each backward",
                ),
            };
            return Err(Error::usage(problem, fix));
        }
        let is_same = |call: &&Call| (call.phase, call.layer) == (phase, layer);
        let microbatch = self.order.calls[..self.next].iter().filter(is_same).count();
        Err(Error::OutOfOrder { position: self.next, made: Call { phase, layer, microbatch }, due })
    }

    /// Runs the call that is due, and returns the call's result.
    pub(crate) fn run<O: TensorTree>(&mut self, call: Call, input: &impl TensorTree) -> Result<O> {
        let CallGroup { manager, order, recorded, next, is_alone, forwards, .. } = self;
        let (region, output) = &recorded[*next];
        let key = manager.step_key(MODE, order.microbatches);
        if *next == 0 || *is_alone && call.phase == Phase::Forward {
            #[cfg(feature = "trainer-ops")]
            manager.tell_of_repeated_draws(key, order.microbatches);
        }
        let program = manager.states[&key].programs[&order.microbatches].clone();
        let (given, captured) = (inputs(input)?, program.inputs(*region).collect::<Vec<_>>());
        let noun = if call.phase == Phase::Forward { "input" } else { "gradient" };
        if let Some(problem) = difference(noun, &given, &captured) {
            return Err(Error::changed(call, problem, "pass tensors of the shapes that the samples had"));
        }
        let replaced = |_, number: usize, _| given[number].tensor;
        let run = Run { extent: Extent::Visit(*region as u32), input: &replaced, ..Run::all(true) };
        manager.run(key, order.microbatches, &run, None)?;
        let Some(output) = output.downcast_ref::<O>() else { unreachable!("a call returns what it was recorded with") };
        let binding = manager.binding(key, order.microbatches);
        let output = output.map(&mut |_, tensor| Ok(manager.lent(&program, &binding, tensor)))?;
        *next = (*next + 1) % order.calls.len();
        match call.phase {
            Phase::Forward if *is_alone => *forwards += 1,
            _ => *forwards = 0,
        }
        Ok(output)
    }

    /// See [`GraphedCallables::verify`](crate::GraphedCallables::verify).
    pub(crate) fn verify<I: TensorTree, O: TensorTree>(
        &mut self,
        of_layers: &[I],
        grads: &[O],
        how: &Verification<'_>,
    ) -> Result<Verified> {
        let key = self.manager.step_key(MODE, self.order.microbatches);
        let program = self.manager.states[&key].programs[&self.order.microbatches].clone();
        // By visit: the tensors that it copies.
        let mut given = HashMap::new();
        for (call, (region, _)) in self.order.calls.iter().zip(&self.recorded) {
            let tensors = match call.phase {
                Phase::Forward => inputs(&of_layers[call.layer])?,
                Phase::Backward => inputs(&grads[call.layer])?,
                Phase::WeightGradients => continue,
            };
            let noun = if call.phase == Phase::Forward { "input" } else { "gradient" };
            if let Some(problem) = difference(noun, &tensors, &program.inputs(*region).collect::<Vec<_>>()) {
                return Err(Error::changed(call, problem, "pass tensors of the shapes that the samples had"));
            }
            given.insert(*region, tensors);
        }
        self.begin_step();
        let input = |visit, number: usize, own| given.get(&visit).map_or(own, |given| given[number].tensor);
        self.manager.verify_list(key, self.order.microbatches, how, &input, Looks::AfterEachRegion)
    }

    /// Begins the order again. Without an order, forwards that no backward has followed are forgotten.
    pub(crate) fn begin_step(&mut self) {
        (self.next, self.forwards) = (0, 0);
    }

    pub(crate) fn report(&self) -> Report {
        self.manager.report()
    }

    pub(crate) fn dots(&self) -> Result<Vec<GraphDot>> {
        self.manager.dots()
    }
}

/// Fails if later microbatches use a buffer that the first one has taken. There may be any number of them, and the plan
/// has one: after that one's last use the buffer's memory is another's.
fn refuse_planned_copies(program: &Program<TrainingRegion>, later_forward: usize, layer: usize) -> Result<()> {
    let Some(name) = program.taken_before_and_used_from(later_forward) else { return Ok(()) };
    let problem = format!(
        "a later microbatch of layer {layer} uses `{name}`, which the first one took as memory of the step: after its last use \
         that is another buffer's"
    );
    let fix = "keep copies for later microbatches in memory that the layer allocates, or give graph_callables an order";
    Err(Error::usage(problem, fix))
}

impl Zeros {
    fn like(&mut self, cx: &StepContext<'_, TrainingPolicy>, of: Tensor) -> Tensor {
        self.largest = self.largest.max(of.bytes());
        let make = || cx.device().virtual_tensor("gradient", of.shape, of.dtype);
        *self.made.entry((of.shape, of.dtype)).or_insert_with(make)
    }
}

/// The calls of an order, each as a region, on sample inputs and on gradients of 0 of outputs. Returns the result of
/// each call. The memory of results is kept as [`GraphedCallables`](crate::GraphedCallables) says.
fn pass<L: Layer<TrainingPolicy>>(
    cx: &mut StepContext<'_, TrainingPolicy>,
    order: &CallOrder,
    is_alone: bool,
    layers: &[L],
    samples: &[L::Input],
    zeros: &mut Zeros,
) -> Result<Vec<Box<dyn Any>>> {
    let mut in_flight: HashMap<(usize, usize), (L::Output, L::Saved)> = HashMap::new();
    // By layer without backwards.
    let mut last_outputs: HashMap<usize, L::Output> = HashMap::new();
    let mut last_grad: Option<L::InputGrad> = None;
    let mut results: Vec<Box<dyn Any>> = Vec::new();
    let trained: HashSet<usize> =
        order.calls.iter().filter(|call| call.phase == Phase::Backward).map(|call| call.layer).collect();
    for &call in &order.calls {
        let (region, layer) = (TrainingRegion::Layer { call, chunk: 0 }, &layers[call.layer]);
        let at = (call.layer, call.microbatch);
        match call.phase {
            Phase::Forward => {
                let grad_before = if is_alone { last_grad.take() } else { None };
                cx.keep(&(last_outputs.remove(&call.layer), grad_before))?;
                let sample = samples[call.layer].clone();
                let (output, saved) = cx.region(region, sample, |cx, input| layer.forward(cx, input))?;
                results.push(Box::new(output.clone()));
                match trained.contains(&call.layer) {
                    true => _ = in_flight.insert(at, (output, saved)),
                    false => _ = last_outputs.insert(call.layer, output),
                }
            }
            Phase::Backward => {
                let Some((output, saved)) = in_flight.remove(&at) else {
                    unreachable!("an order has the forward first")
                };
                cx.keep(&(output.clone(), last_grad.take()))?;
                let grad = output.map(&mut |_, tensor| Ok(zeros.like(cx, tensor)))?;
                let grad = cx.region(region, grad, |cx, grad| layer.backward(cx, saved, grad))?;
                results.push(Box::new(grad.clone()));
                last_grad = Some(grad);
            }
            Phase::WeightGradients => {
                cx.region(region, (), |_, ()| Ok(()))?;
                results.push(Box::new(()));
            }
        }
    }
    cx.keep(&(last_outputs.into_values().collect::<Vec<_>>(), last_grad))?;
    Ok(results)
}
