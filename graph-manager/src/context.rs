//! What a step's code sees: the stream to submit to, buffers from the plan, and regions.

use device::ops::{Copy, Poison};
use device::{CheckError, DType, Op, Shape, Stream, Tensor};

use crate::manager::{Captured, GraphKey, StateKey};
use crate::plan::{RecordedBuffer, Recording, Visit};
use crate::step_shape::Variant;
use crate::{CudaGraphManager, Error, Flow, Mode, Region, Result};

/// A step under way.
pub struct StepContext<'m> {
    pub(crate) manager: &'m mut CudaGraphManager,
    mode: Mode,
    microbatches: usize,
    /// Which of the manager's states it goes by.
    pub(crate) state: StateKey,
    pub(crate) phase: Phase,
    /// The innermost region, and how many buffers it has taken.
    pub(crate) current: Option<Current>,
    /// Inside a region that is being captured.
    capturing: bool,
}

pub(crate) enum Phase {
    /// Nothing runs.
    Record(Recording),
    /// Work is submitted; with `graphs`, regions are captured or replayed. `position` is the next visit expected.
    Run { graphs: bool, position: usize },
}

#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) region: Region,
    /// Index in the recorded order.
    visit: usize,
    taken: usize,
    /// Which part of the region's layer keeps things now.
    pub(crate) part: Option<usize>,
}

impl<'m> StepContext<'m> {
    pub(crate) fn new(
        manager: &'m mut CudaGraphManager,
        mode: Mode,
        microbatches: usize,
        phase: Phase,
    ) -> StepContext<'m> {
        let state = manager.state_key(mode, microbatches);
        StepContext { manager, mode, microbatches, state, phase, current: None, capturing: false }
    }

    pub(crate) fn into_recording(self) -> Recording {
        match self.phase {
            Phase::Record(recording) => recording,
            Phase::Run { .. } => Recording::default(),
        }
    }

    /// What the step is for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Microbatches of the step.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Whether parameter gradients are added to `main_grad`; with a single microbatch they overwrite it.
    pub fn accumulate(&self) -> bool {
        self.microbatches > 1
    }

    /// Whether the current region is a forward that gathers weights: the first microbatch's.
    pub fn gathers(&self) -> bool {
        self.variant().gathers
    }

    /// Whether the current region reduces gradients, for it is the last to add to its layer's: the last microbatch's
    /// backward, or its weights where backwards are split.
    pub fn reduces(&self) -> bool {
        self.variant().reduces
    }

    fn variant(&self) -> Variant {
        let of = |current: Current| self.manager.shape.variant(self.mode, current.region, self.microbatches);
        self.current.map(of).unwrap_or_default()
    }

    /// The stream regions run on.
    pub fn compute(&self) -> &Stream {
        &self.manager.compute
    }

    /// Submits an operation to the compute stream.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn run(&self, op: impl Into<Op>) -> Result<()> {
        self.manager.compute.submit(op).map_err(|source| self.in_region(source))
    }

    pub(crate) fn in_region(&self, source: device::Error) -> Error {
        Error::Device { region: self.region_name(), source }
    }

    pub(crate) fn region_name(&self) -> String {
        self.current.map_or("step".into(), |current| current.region.to_string())
    }

    /// A buffer of the current region. It lives until its last use, which may be in a later region.
    ///
    /// # Errors
    /// [`Error::Usage`] outside of a region; [`Error::Changed`] when the recorded step took another buffer here.
    pub fn tensor(&mut self, name: &'static str, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let shape = shape.into();
        let bytes = shape.elements() * dtype.size();
        let Some(current) = &mut self.current else {
            return Err(Error::Usage {
                problem: format!("buffer `{name}` was taken outside of any region"),
                fix: "take it inside StepContext::region",
            });
        };
        let index = current.taken;
        current.taken += 1;
        let Current { region, visit, .. } = *current;
        if let Phase::Record(recording) = &mut self.phase {
            let device = &self.manager.device;
            let tensor = device.virtual_tensor(&format!("{region}/{name}"), shape, dtype);
            let taken_at = device.trace_position();
            recording.buffers.push(RecordedBuffer { visit, index, name, bytes, buffer: tensor.buffer, taken_at });
            return Ok(tensor);
        }
        let plan = &self.manager.states[&self.state].plan;
        match plan.placement(plan.canonical(region, self.microbatches), index) {
            Some(at) if at.bytes == bytes && at.name == name => {
                Ok(self.manager.areas[&at.area].place(at.buffer, at.offset, shape, dtype))
            }
            planned => Err(Error::Changed {
                region: region.to_string(),
                problem: format!(
                    "buffer {index} is `{name}` of {bytes} bytes, the recorded step took {}",
                    planned.map_or("none".into(), |p| format!("`{}` of {} bytes", p.name, p.bytes))
                ),
                fix: "keep buffers the same from step to step, or make a new manager",
            }),
        }
    }

    /// A region of the step: recorded, run eagerly, captured and launched, or replayed, as the settings and the phase
    /// have it. On replay `body` is not called and the captured output is returned again.
    ///
    /// # Errors
    /// What `body` returns; an out-of-order error when the recorded step has another region here; [`Error::Changed`]
    /// when an input lies elsewhere than at capture.
    pub fn region<I: Flow, O: Flow>(
        &mut self,
        region: Region,
        input: I,
        body: impl FnOnce(&mut StepContext<'m>, I) -> Result<O>,
    ) -> Result<O> {
        if let Phase::Record(recording) = &mut self.phase {
            let visit = recording.order.len();
            let start = self.manager.device.trace_position();
            recording.order.push(Visit { region, next: 0, start, end: start });
            let output = self.inside(region, visit, |cx| {
                let input = cx.own_inputs(region, input)?;
                cx.mark(region)?;
                body(cx, input)
            })?;
            let end = self.manager.device.trace_position();
            if let Phase::Record(recording) = &mut self.phase {
                let next = recording.order.len();
                recording.order[visit].next = next;
                recording.order[visit].end = end;
            }
            return Ok(output);
        }
        let visit = self.expect(region)?;
        let graphs = matches!(self.phase, Phase::Run { graphs: true, .. });
        if graphs && !self.capturing && region.captured(&self.manager.options).is_ok() {
            let state = &self.manager.states[&self.state];
            let key = state.key(&self.manager.shape, self.mode, region, self.microbatches);
            if state.graphs.contains_key(&key) {
                let next = state.recordings[&self.microbatches].order[visit].next;
                if let Phase::Run { position, .. } = &mut self.phase {
                    *position = next;
                }
                return self.replay(region, key, input);
            }
            return self.capture(region, visit, key, input, body);
        }
        self.manager.device.set_scope(&region.to_string());
        self.inside(region, visit, |cx| {
            let input = cx.own_inputs(region, input)?;
            cx.mark(region)?;
            let output = body(cx, input)?;
            cx.poison(region)?;
            Ok(output)
        })
    }

    /// Runs `work` with `region` as the innermost region.
    fn inside<O>(
        &mut self,
        region: Region,
        visit: usize,
        work: impl FnOnce(&mut StepContext<'m>) -> Result<O>,
    ) -> Result<O> {
        let outer = self.current.replace(Current { region, visit, taken: 0, part: None });
        self.forget_deferred();
        let result = work(self);
        self.current = outer;
        result
    }

    fn capture<I: Flow, O: Flow>(
        &mut self,
        region: Region,
        visit: usize,
        key: GraphKey,
        input: I,
        body: impl FnOnce(&mut StepContext<'m>, I) -> Result<O>,
    ) -> Result<O> {
        let name = format!(
            "{region}{}{}{}",
            if key.variant.gathers { ", gathering" } else { "" },
            if key.variant.reduces { ", reducing" } else { "" },
            if key.variant.overwrites { ", overwriting" } else { "" }
        );
        self.manager.device.set_scope(&region.to_string());
        let compute = self.manager.compute.clone();
        let mut inputs = Vec::new();
        let output = self.inside(region, visit, |cx| {
            let input = cx.own_inputs(region, input)?;
            input.map(&mut |_, tensor| {
                inputs.push(tensor);
                Ok(tensor)
            })?;
            compute.begin_capture().map_err(|source| cx.in_region(source))?;
            cx.capturing = true;
            let output = cx.mark(region).and_then(|()| body(cx, input)).and_then(|output| {
                cx.poison(region)?;
                Ok(output)
            });
            cx.capturing = false;
            if output.is_err() {
                compute.abandon_capture();
            }
            output
        })?;
        let graph = compute.end_capture(&name).map_err(|source| Error::Device { region: name.clone(), source })?;
        tracing::debug!(graph = %graph.name(), nodes = graph.nodes().len(), "captured");
        graph.launch(&compute).map_err(|source| Error::Device { region: name, source })?;
        if let Some(state) = self.manager.states.get_mut(&self.state) {
            state.graphs.insert(key, Captured { graph, inputs, output: Box::new(output.clone()) });
            state.captured.push(key);
        }
        Ok(output)
    }

    fn replay<I: Flow, O: Flow>(&mut self, region: Region, key: GraphKey, input: I) -> Result<O> {
        if self.manager.device.is_timed() {
            self.manager.device.set_scope(&region.to_string());
        }
        let captured = &self.manager.states[&self.state].graphs[&key];
        let copies = !self.manager.options.share_io_buffers;
        let mut at = 0;
        input.map(&mut |name, tensor| {
            let same = |was: &&Tensor| (was.shape, was.dtype) == (tensor.shape, tensor.dtype);
            let Some(&expected) = captured.inputs.get(at).filter(same) else {
                return Err(other_inputs(region, format!("input `{name}` has another number, shape or type")));
            };
            at += 1;
            if tensor.address == expected.address {
                return Ok(tensor);
            }
            if copies {
                self.manager.device.set_scope(&region.to_string());
                self.run(Copy { input: tensor, output: expected })?;
                return Ok(tensor);
            }
            Err(Error::Changed {
                region: region.to_string(),
                problem: format!("input `{name}` lies at another address than at capture"),
                fix: "hand over the buffer the region was captured with, or set share_io_buffers = false",
            })
        })?;
        if at < captured.inputs.len() {
            return Err(other_inputs(region, format!("it has {at} inputs of {}", captured.inputs.len())));
        }
        captured
            .graph
            .launch(&self.manager.compute)
            .map_err(|source| Error::Device { region: captured.graph.name().into(), source })?;
        match captured.output.downcast_ref::<O>() {
            Some(output) => Ok(output.clone()),
            None => Err(Error::Changed {
                region: region.to_string(),
                problem: format!("it was captured with another output type than {}", std::any::type_name::<O>()),
                fix: "return the same type from the region each step",
            }),
        }
    }

    /// With boundary copies, the region's own copies of its inputs; else the inputs themselves.
    fn own_inputs<I: Flow>(&mut self, region: Region, input: I) -> Result<I> {
        let options = &self.manager.options;
        if options.share_io_buffers || region.captured(options).is_err() {
            return Ok(input);
        }
        input.map(&mut |name, tensor| {
            let own = self.tensor(name, tensor.shape, tensor.dtype)?;
            self.run(Copy { input: tensor, output: own })?;
            Ok(own)
        })
    }

    /// Leaves a mark, in the region's graph too, where somebody watches.
    fn mark(&self, region: Region) -> Result<()> {
        match (self.manager.device.progress(), region.mark()) {
            (Some(progress), Some(name)) => self.run(progress.region(&name)),
            _ => Ok(()),
        }
    }

    /// Overwrites what is dead after this region.
    fn poison(&mut self, region: Region) -> Result<()> {
        if !self.manager.options.poison {
            return Ok(());
        }
        let plan = &self.manager.states[&self.state].plan;
        for dead in plan.dead_after(plan.canonical(region, self.microbatches)) {
            let output = self.manager.areas[&dead.area].place(dead.buffer, dead.offset, [dead.bytes], DType::U8);
            self.run(Poison { output })?;
        }
        Ok(())
    }

    /// Checks that the recorded order has this region next, and moves on.
    fn expect(&mut self, region: Region) -> Result<usize> {
        let Phase::Run { position, .. } = &mut self.phase else { return Ok(0) };
        let order = &self.manager.states[&self.state].recordings[&self.microbatches].order;
        let visit = *position;
        match order.get(visit) {
            Some(expected) if expected.region == region => {
                *position += 1;
                Ok(visit)
            }
            expected => Err(out_of_order(visit, expected, &region.to_string())),
        }
    }

    /// Checks that the step has gone through all of the recorded order.
    pub(crate) fn check_complete(&self) -> Result<()> {
        let Phase::Run { position, .. } = &self.phase else { return Ok(()) };
        let order = &self.manager.states[&self.state].recordings[&self.microbatches].order;
        match order.get(*position) {
            None => Ok(()),
            expected => Err(out_of_order(*position, expected, "the end of the step")),
        }
    }
}

fn out_of_order(position: usize, expected: Option<&Visit>, actual: &str) -> Error {
    let expected = expected.map_or("the end of the step".into(), |visit| visit.region.to_string());
    let hazard = CheckError::OutOfOrder { position, expected, actual: actual.into() };
    Error::Device { region: "step".into(), source: hazard.into() }
}

fn other_inputs(region: Region, problem: String) -> Error {
    Error::Changed {
        region: region.to_string(),
        problem: format!("{problem} than at capture"),
        fix: "hand over the same buffers each step",
    }
}
