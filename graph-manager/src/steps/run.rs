//! A run of a list, or of an extent of a list: entries are submitted, and graphs captured at first use and launched.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use device::ops::{CollectiveKind, Copy, Poison};
use device::{DType, Device, NvtxRange, Op, Stream, StreamId, Tensor};

use tracing::span::EnteredSpan;

use super::trial::Trial;
use crate::error::{Error, Result};
use crate::finally::Finally;
use crate::keys::{GraphKey, StepKey};
use crate::manager::{Captured, CudaGraphManager, Protected};
use crate::memory::{Binding, GraphHooks};
use crate::policy::Policy;
use crate::program::{Action, Extent, Program, Schedule, Work, Writers};

/// How a list is run.
pub(crate) struct Run<'w> {
    /// Captured regions are launched as graphs; else everything is submitted.
    pub(crate) graphs: bool,
    pub(crate) extent: Extent,
    /// Memory apart from the plan, if any.
    pub(crate) apart: Option<Rc<Binding>>,
    /// The visits that are left out, in a rehearsal. Transfers from one rank to another are left out too.
    pub(crate) left_out: Option<&'w [bool]>,
    /// The input of that number that a visit copies, in place of the one that was recorded.
    pub(crate) input: &'w dyn Fn(usize, usize, Tensor) -> Tensor,
}

impl Run<'_> {
    /// The run of the whole list, as recorded.
    pub(crate) fn all(graphs: bool) -> Run<'static> {
        Run { graphs, extent: Extent::All, apart: None, left_out: None, input: &|_, _, recorded| recorded }
    }
}

impl<P: Policy> CudaGraphManager<P> {
    /// Runs a list, and notes the list's results in a trial. The device's scope is restored, however the run ends.
    pub(crate) fn run(
        &mut self,
        key: StepKey<P::Mode>,
        microbatches: usize,
        run: &Run<'_>,
        trial: Option<&mut Trial>,
    ) -> Result<()> {
        let (pool, scope) = (self.pool.clone(), self.pool.device().scope());
        let _restored = Finally(|| pool.device().set_scope(&scope));
        pool.during(|| {
            let program = self.states[&key].programs[&microbatches].clone();
            let binding = match &run.apart {
                Some(apart) => apart.clone(),
                None => self.binding(key, microbatches),
            };
            let schedule = self.schedule(key, microbatches, run);
            let device = pool.device().clone();
            let done = Cell::new(false);
            let _joined = Finally(|| {
                if !done.get() {
                    join_all(pool.device(), program.queues());
                }
            });
            let program = program.clone();
            let writers = self.protected.as_ref().map(|protected| program.writers(&protected.ranges));
            let (capturing, told, waited) = (false, None, false);
            let mut under_way =
                UnderWay { manager: self, device, key, program, binding, run, trial, capturing, told, writers, waited };
            under_way.play(&schedule, 0)?;
            // All work after a run comes after its end, and so after the waits in it.
            if under_way.waited {
                self.protected = None;
            }
            done.set(true);
            Ok(())
        })
    }

    /// The actions of the host that run a list or an extent of one. They are made at the first run, and graphs that are
    /// new in it get their numbers.
    fn schedule(&mut self, key: StepKey<P::Mode>, microbatches: usize, run: &Run<'_>) -> Rc<Schedule> {
        let of = (microbatches, run.graphs, run.extent);
        if let Some(schedule) = self.states[&key].schedules.get(&of) {
            return schedule.clone();
        }
        let program = self.states[&key].programs[&microbatches].clone();
        let mut numbers = std::mem::take(&mut self.state_mut(key).graph_numbers);
        let is_graph = |visit: &usize| run.graphs && self.why_eager(&program, *visit).is_none();
        let captured: Vec<usize> = (0..program.visits.len()).filter(is_graph).collect();
        let keys = self.states[&key].graph_keys(&program, captured.iter().copied());
        let graph_of: HashMap<usize, GraphKey<P::Region>> = captured.into_iter().zip(keys).collect();
        let schedule = Rc::new(Schedule::of(&program, run.extent, self.options.poison, &mut |visit| {
            let (graph, next) = (graph_of.get(&visit)?, numbers.len() as u32);
            Some(*numbers.entry(*graph).or_insert(next))
        }));
        let state = self.state_mut(key);
        state.graphs.resize_with(numbers.len(), || None);
        state.graph_numbers = numbers;
        // The schedule of a long step without graphs takes memory, and is seldom used again once there are graphs.
        if run.graphs {
            state.schedules.retain(|(_, graphs, _), _| *graphs);
        }
        state.schedules.insert(of, schedule.clone());
        schedule
    }
}

/// A list that is being run.
struct UnderWay<'u, P: Policy> {
    manager: &'u mut CudaGraphManager<P>,
    device: Device,
    key: StepKey<P::Mode>,
    program: Rc<Program<P::Region>>,
    binding: Rc<Binding>,
    run: &'u Run<'u>,
    trial: Option<&'u mut Trial>,
    /// The inside of a graph is being captured.
    capturing: bool,
    /// The visit that tracers of the host, such as a profiler, were told about last.
    told: Option<(usize, EnteredSpan, Option<NvtxRange>)>,
    /// The entries that write to protected memory, if some is.
    writers: Option<Writers>,
    /// Whether a stream waited for the end of the protection.
    waited: bool,
}

impl<P: Policy> UnderWay<'_, P> {
    /// Carries out a schedule. Its events are those of the manager from `first_event` on.
    fn play(&mut self, schedule: &Schedule, first_event: usize) -> Result<()> {
        let needed = first_event + schedule.events;
        while self.manager.events.len() < needed {
            self.manager.events.push(self.device.event());
        }
        for action in &schedule.actions {
            match *action {
                Action::Wait { queue, event } => {
                    self.queue(queue).wait(&self.manager.events[first_event + event as usize])?;
                }
                Action::Record { queue, event } => {
                    self.queue(queue).record(&self.manager.events[first_event + event as usize])?;
                }
                Action::Submit { visit, item } => self.submit(visit, item)?,
                Action::Launch { visit, graph } => self.launch(visit as usize, graph as usize, needed)?,
                Action::End { visit } => self.end(visit as usize)?,
            }
        }
        Ok(())
    }

    fn queue(&self, number: u16) -> Stream {
        self.device.stream_named(self.program.queues()[number as usize])
    }

    fn is_left_out(&self, visit: usize) -> bool {
        self.run.left_out.is_some_and(|left_out| left_out.get(visit).copied().unwrap_or(false))
    }

    /// Opens the span of a visit for tracers and the visit's range for NVIDIA's profilers, unless both are open.
    fn tell(&mut self, visit: usize) {
        if self.told.as_ref().is_some_and(|(told, ..)| *told == visit) {
            return;
        }
        // The span before ends first.
        self.told = None;
        if let Some(visited) = self.program.visits.get(visit) {
            let span = tracing::debug_span!("region", region = %visited.name).entered();
            let range = self.device.nvtx_range(|| visited.name.to_string());
            self.told = Some((visit, span, range));
        }
    }

    fn submit(&mut self, visit: u32, item: u32) -> Result<()> {
        self.tell(visit as usize);
        let (program, run) = (&*self.program, self.run);
        let (entry, table, input) = program.entry(visit, item);
        if entry.early && run.graphs || self.is_left_out(visit as usize) {
            return Ok(());
        }
        let stream = self.device.stream_named(entry.queue);
        if self.writers.as_ref().is_some_and(|writers| writers.has(&self.program, visit, item)) {
            self.waited |= wait_to_write(self.manager.protected.as_ref(), &stream, self.capturing)?;
        }
        let region = program.visits.get(visit as usize).map(|visit| &*visit.name);
        let within = |error: Error| error.within(region.unwrap_or(crate::error::OUTSIDE));
        self.device.set_scope(entry.label.as_deref().or(region).unwrap_or_default());
        let op = match &entry.work {
            Work::Host(call) => {
                return (call.call)(&stream, &|tensor| self.binding.bound(program, tensor)).map_err(within);
            }
            Work::Op(op) => op,
        };
        if run.left_out.is_some() && goes_to_another_stage(op) {
            return Ok(());
        }
        let mut op = Op::clone(op).map(|tensor| self.binding.bound_in_visit(program, table, tensor));
        if let (Op::Copy(Copy { input, output }), Some(number)) = (&mut op, input) {
            *input = (run.input)(visit as usize, number, *input);
            if input.address == output.address {
                return Ok(());
            }
        }
        stream.submit_announced(op).map_err(|error| within(error.into()))
    }

    /// Launches the graph of a visit. Without a graph, the visit is captured first.
    fn launch(&mut self, visit: usize, graph: usize, first_event: usize) -> Result<()> {
        // A graph that a rehearsal captures is used later, so it must have all transfers.
        let exchanges = || self.program.operations_in(visit).any(goes_to_another_stage);
        if self.is_left_out(visit) || self.run.left_out.is_some() && exchanges() {
            return Ok(());
        }
        self.tell(visit);
        let program = self.program.clone();
        let visited = &program.visits[visit];
        if self.device.is_timed() {
            self.device.set_scope(&visited.name);
        }
        let stream = self.device.stream_named(visited.stream);
        if self.writers.as_ref().is_some_and(|writers| writers.has_in(&program, visit)) {
            self.waited |= wait_to_write(self.manager.protected.as_ref(), &stream, self.capturing)?;
        }
        if self.manager.states[&self.key].graphs[graph].is_none() {
            self.capture(visit, graph, &stream, first_event)?;
        }
        let Some(captured) = &self.manager.states[&self.key].graphs[graph] else { unreachable!("it was captured") };
        let named = |error| Error::from(error).within(captured.graph.name());
        let pool = &self.manager.pool;
        // In a recording or capture of another step the graph becomes a part of that step: nothing is launched.
        let hook = |call: fn(&dyn GraphHooks, &str)| {
            if !pool.is_nested() {
                pool.hook(|hooks| call(hooks, captured.graph.name()));
            }
        };
        hook(|hooks, graph| hooks.before_replay(graph));
        captured.graph.launch(&stream).map_err(named)?;
        hook(|hooks, graph| hooks.after_replay(graph));
        Ok(())
    }

    fn capture(&mut self, visit: usize, graph: usize, stream: &Stream, first_event: usize) -> Result<()> {
        let program = self.program.clone();
        let name = &program.visits[visit].name;
        let within = |error: Error| error.within(name);
        let schedule = Schedule::of(&program, Extent::Inside(visit as u32), self.manager.options.poison, &mut |_| None);
        self.device.set_scope(name);
        let pool = self.manager.pool.clone();
        // Ranges nest, and the regions inside have their own.
        self.told = None;
        let range = self.device.nvtx_range(|| format!("capture {name}"));
        pool.hook(|hooks| hooks.before_capture(name));
        let mode = self.manager.options.capture_mode;
        stream.begin_capture_in(mode).map_err(|error| within(error.into()))?;
        // After `end_capture` there is nothing to abandon.
        let _unfinished = Finally(|| stream.abandon_capture());
        self.capturing = true;
        let played = self.play(&schedule, first_event);
        self.capturing = false;
        self.told = None;
        played?;
        pool.hook(|hooks| hooks.before_instantiate(name));
        let captured = stream.end_capture(name).map_err(|error| within(error.into()))?;
        pool.hook(|hooks| hooks.after_instantiate(name, captured.nodes().len()));
        drop(range);
        self.tell(visit);
        tracing::debug!(graph = %captured.name(), nodes = captured.nodes().len(), "captured");
        let state = self.manager.state_mut(self.key);
        let number = state.graphs.iter().flatten().count();
        state.graphs[graph] = Some(Captured { number, graph: captured, pool });
        Ok(())
    }

    /// After a visit that is not part of a graph, or after one inside the graph that is being captured: overwrites
    /// buffers that are dead from now on, and notes the visit's results.
    fn end(&mut self, visit: usize) -> Result<()> {
        let visited = &self.program.visits[visit];
        let stream = self.device.stream_named(visited.stream);
        if self.manager.options.poison && !self.is_left_out(visit) && self.is_not_in_graph(visit) {
            self.device.set_scope(&visited.name);
            let plan = &self.manager.states[&self.key].plan;
            let key = plan.key(visited, self.program.microbatches);
            for dead in plan.dead_after.get(&key).into_iter().flatten() {
                let output = self.manager.areas[&dead.area].place(dead.buffer, dead.offset, [dead.bytes], DType::U8);
                stream.submit(Poison { output }).map_err(|error| Error::from(error).within(&visited.name))?;
            }
        }
        if self.capturing {
            return Ok(());
        }
        let Some(trial) = self.trial.as_deref_mut() else { return Ok(()) };
        let Some(tensors) = trial.after.remove(&visit) else { return Ok(()) };
        // The host waits for the region's stream alone: other streams may wait for data that this rank has yet to send.
        stream.synchronize()?;
        trial.note(&self.device, &tensors)
    }

    /// Whether a visit that ends was submitted, or is being captured. A launched graph overwrites dead buffers itself.
    fn is_not_in_graph(&self, visit: usize) -> bool {
        self.capturing || !self.run.graphs || self.manager.why_eager(&self.program, visit).is_some()
    }
}

/// Lets a stream that is about to write to protected memory wait for the end of the protection. What a capture records
/// has waited before: its launch did. Returns whether it waited.
fn wait_to_write(protected: Option<&Protected>, stream: &Stream, capturing: bool) -> Result<bool> {
    let Some(protected) = protected.filter(|_| !capturing) else { return Ok(false) };
    stream.wait(&protected.until)?;
    Ok(true)
}

/// After a failed step: the first queue's next work waits for the work under way on the others.
fn join_all(device: &Device, queues: &[StreamId]) {
    let [first, others @ ..] = queues else { return };
    for queue in others {
        let event = device.event();
        let joined = device.stream_named(*queue).record(&event).and_then(|()| device.stream_named(*first).wait(&event));
        // The error of the step itself says more.
        joined.unwrap_or_else(|error| tracing::debug!("{error}"));
    }
}

/// Whether the operation is a send to another rank or a receive from one. Collectives of a group are neither.
fn goes_to_another_stage(op: &Op) -> bool {
    matches!(op, Op::Collective(transfer) if matches!(transfer.kind, CollectiveKind::Send { .. } | CollectiveKind::Receive { .. }))
}
