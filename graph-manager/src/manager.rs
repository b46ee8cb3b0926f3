//! The manager: what is recorded, planned, captured and replayed.

use std::collections::{BTreeMap, HashSet};

use device::Stream;

use crate::area::MemoryUse;
use crate::context::StepContext;
use crate::error::{Error, Result};
use crate::keys::StepKey;
use crate::options::ManagerOptions;
use crate::policy::Policy;
use crate::report::{EagerReport, GraphReport, Report};
use crate::resources::Resources;
use crate::side_stream::SideStream;

/// Runs steps. The first pass over a step is a recording in which nothing runs, and from which memory is planned. Then
/// come eager warm-up steps. After them each region is captured and launched where the step first meets it, and from then
/// on replayed.
pub struct CudaGraphManager<P: Policy> {
    resources: Resources<P>,
    /// Called once per mode and plan before its first capture.
    before_capture: Option<Box<dyn Fn() -> Result<()>>>,
}

/// The code of a step.
type Body<'b, P> = &'b mut dyn FnMut(&mut StepContext<'_, P>) -> Result<()>;

impl<P: Policy> CudaGraphManager<P> {
    /// A manager of steps whose regions run on `compute`.
    ///
    /// # Errors
    /// [`Error::Usage`] when graphs are on without a warm-up step.
    pub fn new(compute: Stream, options: ManagerOptions, policy: P) -> Result<CudaGraphManager<P>> {
        if options.enable && options.warmup_steps == 0 {
            return Err(Error::Usage {
                problem: "warmup_steps is 0, but every collective must have run once before it is captured".into(),
                fix: "set warmup_steps to 1 or more",
            });
        }
        let device = compute.device().clone();
        let resources = Resources {
            states: BTreeMap::new(),
            areas: BTreeMap::new(),
            side: SideStream::new(&device, "side"),
            device,
            compute,
            options,
            policy,
        };
        Ok(CudaGraphManager { resources, before_capture: None })
    }

    /// Has `barrier` called before the first capture of each mode and plan, so that all ranks begin it together.
    pub fn before_capture(&mut self, barrier: impl Fn() -> Result<()> + 'static) {
        self.before_capture = Some(Box::new(barrier));
    }

    /// The settings.
    pub fn options(&self) -> &ManagerOptions {
        &self.resources.options
    }

    /// Goes through a step without running it, and plans its memory. Record every mode, each with every number of
    /// microbatches that will come, before the first [`CudaGraphManager::step`], which allocates.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Usage`] when the step cannot be planned, or does not fit an earlier recording of the
    /// mode.
    pub fn record(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let device = self.resources.device.clone();
        device.begin_trace();
        let mut cx = StepContext::record(&mut self.resources, mode, microbatches);
        let result = body(&mut cx).and_then(|()| cx.check_deferred());
        let recording = cx.into_recording(&device.end_trace());
        result?;
        self.resources.plan(mode, recording)
    }

    /// Allocates what the recorded modes need. Modes share memory: one runs at a time.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate(&mut self) -> Result<()> {
        self.resources.allocate()
    }

    /// Bytes that the recorded modes need, by area.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let planned = self.resources.planned().into_iter();
        planned.map(|(kind, bytes)| MemoryUse { area: kind.to_string(), bytes }).collect()
    }

    /// Graphs that recorded steps of the mode will have: each region that is captured, by slot and variant.
    pub fn expected_graphs(&self, mode: P::Mode) -> usize {
        let Resources { states, policy, .. } = &self.resources;
        let is_captured = |region| self.resources.captured(region).is_ok();
        let mut keys = HashSet::new();
        for (kind, state) in states.iter().filter(|(kind, _)| kind.0 == mode) {
            for recording in state.recordings.values() {
                let captured = |visit: &usize| is_captured(recording.order[*visit].region);
                for visit in recording.submitted(is_captured).filter(captured) {
                    keys.insert((kind.1, state.graph_key(policy, mode, recording, visit)));
                }
            }
        }
        keys.len()
    }

    /// Records a step unless it was, and makes sure that there is memory for it.
    fn prepare(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<StepKey<P::Mode>> {
        let key = self.resources.step_key(mode, microbatches);
        if !self.resources.states.get(&key).is_some_and(|state| state.recordings.contains_key(&microbatches)) {
            self.record(mode, microbatches, body)?;
        }
        if self.resources.areas.is_empty() {
            self.allocate()?;
        }
        self.resources.check_room(key)?;
        Ok(key)
    }

    /// Goes through the beginning of a step before the first real one: once eagerly, and once more to capture its regions
    /// if no captured region contains others.
    ///
    /// A driver may have to finish all work on a GPU before it loads a kernel or instantiates a graph. If that work
    /// includes transfers that wait for other ranks, which wait in turn, a first step might never end. So `body` leaves out
    /// such transfers. It ends before what must not be done twice, which is captured in its real step.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`].
    pub fn rehearse(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let key = self.prepare(mode, microbatches, body)?;
        let capture = self.resources.options.enable && self.captures_leaves(key, microbatches);
        for graphs in [Some(false), capture.then_some(true)].into_iter().flatten() {
            if let (true, Some(barrier)) = (graphs, &self.before_capture) {
                barrier()?;
            }
            let result = body(&mut StepContext::run_step(&mut self.resources, mode, microbatches, graphs));
            self.end_of_pass();
            result?;
        }
        Ok(())
    }

    /// Whether all captured regions of a recorded step are without regions inside them.
    fn captures_leaves(&self, key: StepKey<P::Mode>, microbatches: usize) -> bool {
        let recording = &self.resources.states[&key].recordings[&microbatches];
        let is_captured = |region| self.resources.captured(region).is_ok();
        recording
            .submitted(is_captured)
            .all(|at| !recording.is_composite(at) || !is_captured(recording.order[at].region))
    }

    /// Runs one step.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Changed`] or an out-of-order error when the step differs from its recording. After
    /// an error the step is half done: its numbers mean nothing.
    pub fn step(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let key = self.prepare(mode, microbatches, body)?;
        let (steps, warm_up) = (self.resources.states[&key].steps, self.resources.options.warmup_steps);
        let graphs = self.resources.options.enable && steps >= warm_up;
        if let Some(barrier) = &self.before_capture
            && graphs
            && steps == warm_up
        {
            barrier()?;
        }
        let mut cx = StepContext::run_step(&mut self.resources, mode, microbatches, graphs);
        let result = body(&mut cx).and_then(|()| cx.check_complete());
        self.end_of_pass();
        if let Some(state) = self.resources.states.get_mut(&key) {
            state.steps += 1;
        }
        result
    }

    /// Leaves stream and device as they were before a step, however it ended.
    fn end_of_pass(&self) {
        self.resources.compute.abandon_capture();
        self.resources.device.set_scope("");
    }

    /// Whether steps of that kind no longer warm up or capture.
    pub fn is_settled(&self, mode: P::Mode, microbatches: usize) -> bool {
        let warm_up = if self.resources.options.enable { self.resources.options.warmup_steps } else { 0 };
        let key = self.resources.step_key(mode, microbatches);
        self.resources.states.get(&key).is_some_and(|state| state.steps > warm_up)
    }

    /// What has been captured so far.
    pub fn report(&self) -> Report {
        let is_captured = |region| self.resources.captured(region).is_ok();
        let mut graphs = Vec::new();
        let mut eager: Vec<EagerReport> = Vec::new();
        for state in self.resources.states.values() {
            graphs.extend(state.captured.iter().map(|key| GraphReport::new(&state.graphs[key].graph)));
            for recording in state.recordings.values() {
                // A composite region is described by the regions in it.
                for visit in recording.submitted(is_captured).filter(|visit| !recording.is_composite(*visit)) {
                    let region = recording.order[visit].region;
                    let Err(reason) = self.resources.captured(region) else { continue };
                    let entry = EagerReport { region: self.resources.policy.kind(region), reason: reason.into() };
                    if !eager.contains(&entry) {
                        eager.push(entry);
                    }
                }
            }
        }
        Report { graphs, eager, memory: self.memory() }
    }
}
