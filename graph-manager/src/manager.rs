//! The manager: what is recorded, planned, captured and replayed.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use device::{Area, Device, Graph, Op, Stream, StreamId, Tensor};

use crate::beside::SideStream;
use crate::context::Phase;
use crate::deferred::DeferredKey;
use crate::kept::KeptKey;
use crate::plan::{AreaKind, Plan, Recording};
use crate::step_shape::Variant;
use crate::{
    EagerReport, Error, GraphOptions, GraphReport, MemoryUse, Mode, Region, Report, Result, Scope, StepContext,
    StepShape,
};

/// Runs steps: the first pass over a step is a recording that runs nothing, from which memory is planned; then come
/// eager warm-up steps, then each region is captured and launched where the step first meets it, and from then on
/// replayed.
///
/// Fields drop in order: graphs before the memory they point into.
pub struct CudaGraphManager {
    pub(crate) states: BTreeMap<StateKey, State>,
    pub(crate) areas: BTreeMap<AreaKind, Area>,
    pub(crate) device: Device,
    pub(crate) compute: Stream,
    pub(crate) beside: Rc<SideStream>,
    pub(crate) options: GraphOptions,
    pub(crate) shape: StepShape,
    /// Called once per mode and plan before its first capture.
    before_capture: Option<Box<dyn Fn() -> Result<()>>>,
}

/// What has a plan and graphs of its own: a mode, and where memory is planned over the whole step each number of its
/// microbatches.
pub(crate) type StateKey = (Mode, Option<usize>);

/// What is known of steps of one kind.
pub(crate) struct State {
    /// By number of microbatches.
    pub(crate) recordings: BTreeMap<usize, Recording>,
    pub(crate) plan: Plan,
    /// What each forward keeps for its backward.
    pub(crate) kept: HashMap<KeptKey, Box<dyn Any>>,
    /// What each backward puts off, as its code was last run.
    pub(crate) deferred: HashMap<DeferredKey, Vec<Op>>,
    pub(crate) graphs: HashMap<GraphKey, Captured>,
    /// Keys in order of capture.
    pub(crate) captured: Vec<GraphKey>,
    /// Steps done.
    pub(crate) steps: usize,
}

/// Tells graphs of one mode apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GraphKey {
    /// The region, of its slot.
    pub(crate) region: Region,
    /// What it does beside.
    pub(crate) variant: Variant,
}

/// A region's graph, what it was captured with and what it returned.
pub(crate) struct Captured {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) output: Box<dyn Any>,
}

impl CudaGraphManager {
    /// A manager of steps of that shape, whose regions run on `compute`.
    ///
    /// # Errors
    /// [`Error::Usage`] when graphs are on without a warm-up step.
    pub fn new(compute: Stream, options: GraphOptions, shape: StepShape) -> Result<CudaGraphManager> {
        if options.enable && options.warmup_steps == 0 {
            return Err(Error::Usage {
                problem: "warmup_steps is 0, but every collective must have run once before it is captured".into(),
                fix: "set warmup_steps to 1 or more",
            });
        }
        let device = compute.device().clone();
        Ok(CudaGraphManager {
            states: BTreeMap::new(),
            areas: BTreeMap::new(),
            beside: SideStream::new(&device, "beside"),
            device,
            compute,
            options,
            shape,
            before_capture: None,
        })
    }

    /// Has `barrier` called before the first capture of each mode and plan, so that all ranks begin it together.
    pub fn before_capture(&mut self, barrier: impl Fn() -> Result<()> + 'static) {
        self.before_capture = Some(Box::new(barrier));
    }

    /// The settings.
    pub fn options(&self) -> &GraphOptions {
        &self.options
    }

    /// A plan over the whole step is for one number of microbatches; slots hold any.
    pub(crate) fn state_key(&self, mode: Mode, microbatches: usize) -> StateKey {
        (mode, (!self.options.slots()).then_some(microbatches))
    }

    /// Goes through a step without running it, and plans its memory. Record every mode, each with every number of
    /// microbatches that will come, before the first [`CudaGraphManager::step`], which allocates.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Usage`] when the step does not fit an earlier recording of the mode.
    pub fn record(
        &mut self,
        mode: Mode,
        microbatches: usize,
        body: &mut dyn FnMut(&mut StepContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let recording = Recording { microbatches, ..Recording::default() };
        self.device.begin_trace();
        let mut cx = StepContext::new(self, mode, microbatches, Phase::Record(recording));
        let result = body(&mut cx);
        let recording = cx.into_recording();
        let events = self.device.end_trace();
        result?;
        let recording = Recording { events, ..recording };
        let key = self.state_key(mode, microbatches);
        match self.states.get_mut(&key) {
            None => {
                let slots = recording.in_flight(&self.shape);
                let plan = Plan::new(&recording, slots, &self.options, &self.shape, self.compute.id());
                let recordings = BTreeMap::from([(microbatches, recording)]);
                let state = State {
                    recordings,
                    plan,
                    kept: HashMap::new(),
                    deferred: HashMap::new(),
                    graphs: HashMap::new(),
                    captured: Vec::new(),
                    steps: 0,
                };
                self.states.insert(key, state);
            }
            Some(state) => {
                if self.areas.is_empty() {
                    state.make_room(&recording, &self.options, &self.shape, self.compute.id());
                }
                state.accept(&recording, &self.shape)?;
                state.recordings.insert(microbatches, recording);
            }
        }
        Ok(())
    }

    /// Allocates what the recorded modes need. Modes share memory: one runs at a time.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate(&mut self) -> Result<()> {
        for (kind, bytes) in self.planned() {
            let area = self.device.allocate(&kind.to_string(), bytes)?;
            self.areas.insert(kind, area);
        }
        Ok(())
    }

    /// Fails when a mode was recorded after memory was taken and needs more.
    fn check_room(&self, state: StateKey) -> Result<()> {
        let fits = |(kind, bytes): (&AreaKind, &usize)| self.areas.get(kind).is_some_and(|area| area.bytes() >= *bytes);
        if self.states[&state].plan.areas.iter().all(fits) {
            return Ok(());
        }
        Err(Error::Usage {
            problem: format!("a {:?} step came after memory was allocated, and needs more than there is", state.0),
            fix: "record every mode, and every number of microbatches, that will run before the first step",
        })
    }

    fn planned(&self) -> BTreeMap<AreaKind, usize> {
        let mut sizes: BTreeMap<AreaKind, usize> = BTreeMap::new();
        for state in self.states.values() {
            for (kind, bytes) in &state.plan.areas {
                let size = sizes.entry(*kind).or_default();
                *size = (*bytes).max(*size);
            }
        }
        sizes
    }

    /// Bytes the recorded modes need, by area.
    pub fn memory(&self) -> Vec<MemoryUse> {
        self.planned().into_iter().map(|(kind, bytes)| MemoryUse { area: kind.to_string(), bytes }).collect()
    }

    /// Graphs that recorded steps of the mode will have: each region that is captured, by slot and variant.
    pub fn expected_graphs(&self, mode: Mode) -> usize {
        let mut keys = std::collections::BTreeSet::new();
        for (kind, state) in self.states.iter().filter(|(kind, _)| kind.0 == mode) {
            for recording in state.recordings.values() {
                for (region, _) in recording.submitted(&self.options).filter(|(_, captured)| captured.is_ok()) {
                    keys.insert((kind, state.key(&self.shape, mode, region, recording.microbatches)));
                }
            }
        }
        keys.len()
    }

    /// Records a step unless it was, and sees to it that there is memory for it.
    fn prepare(
        &mut self,
        mode: Mode,
        microbatches: usize,
        body: &mut dyn FnMut(&mut StepContext<'_>) -> Result<()>,
    ) -> Result<StateKey> {
        let key = self.state_key(mode, microbatches);
        if !self.states.get(&key).is_some_and(|state| state.recordings.contains_key(&microbatches)) {
            self.record(mode, microbatches, body)?;
        }
        if self.areas.is_empty() {
            self.allocate()?;
        }
        self.check_room(key)?;
        Ok(key)
    }

    /// Goes through the beginning of a step before the first real one: eagerly, and where each region is a graph once
    /// more, in which they are captured. A driver may load a kernel, or instantiate a graph, only once everything on the
    /// GPU is done; where that includes transfers that wait for other ranks, which wait in turn, a first step might never
    /// end. `body` leaves out such transfers, and ends before what must not be done twice: it is captured in its real step.
    ///
    /// # Errors
    /// As [`CudaGraphManager::step`].
    pub fn rehearse(
        &mut self,
        mode: Mode,
        microbatches: usize,
        body: &mut dyn FnMut(&mut StepContext<'_>) -> Result<()>,
    ) -> Result<()> {
        self.prepare(mode, microbatches, body)?;
        let by_region = self.options.enable && self.options.scope == Scope::PerLayer;
        for graphs in [Some(false), by_region.then_some(true)].into_iter().flatten() {
            if let (true, Some(barrier)) = (graphs, &self.before_capture) {
                barrier()?;
            }
            let mut cx = StepContext::new(self, mode, microbatches, Phase::Run { graphs, position: 0 });
            let result = body(&mut cx);
            self.compute.abandon_capture();
            self.device.set_scope("");
            result?;
        }
        Ok(())
    }

    /// Runs one step.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Changed`] or an out-of-order error when the step differs from its recording. After
    /// an error the step is half done: its numbers mean nothing.
    pub fn step(
        &mut self,
        mode: Mode,
        microbatches: usize,
        body: &mut dyn FnMut(&mut StepContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let key = self.prepare(mode, microbatches, body)?;
        let steps = self.states[&key].steps;
        let graphs = self.options.enable && steps >= self.options.warmup_steps;
        if let Some(barrier) = &self.before_capture
            && graphs
            && steps == self.options.warmup_steps
        {
            barrier()?;
        }
        let mut cx = StepContext::new(self, mode, microbatches, Phase::Run { graphs, position: 0 });
        let result = body(&mut cx).and_then(|()| cx.check_complete());
        self.compute.abandon_capture();
        self.device.set_scope("");
        if let Some(state) = self.states.get_mut(&key) {
            state.steps += 1;
        }
        result
    }

    /// Whether steps of that kind no longer warm up or capture.
    pub fn is_settled(&self, mode: Mode, microbatches: usize) -> bool {
        let warm_up = if self.options.enable { self.options.warmup_steps } else { 0 };
        self.states.get(&self.state_key(mode, microbatches)).is_some_and(|state| state.steps > warm_up)
    }

    /// What has been captured so far.
    pub fn report(&self) -> Report {
        let mut graphs = Vec::new();
        let mut eager: Vec<EagerReport> = Vec::new();
        for state in self.states.values() {
            graphs.extend(state.captured.iter().map(|key| GraphReport::new(&state.graphs[key].graph)));
            for recording in state.recordings.values() {
                for (region, captured) in recording.submitted(&self.options) {
                    let Err(reason) = captured else { continue };
                    if matches!(region, Region::Step | Region::Iteration) {
                        continue;
                    }
                    let region = region.to_string().split(" of ").next().unwrap_or_default().to_string();
                    let entry = EagerReport { region, reason: reason.into() };
                    if !eager.contains(&entry) {
                        eager.push(entry);
                    }
                }
            }
        }
        Report { graphs, eager, memory: self.memory() }
    }
}

impl State {
    /// The key of a region's graph.
    pub(crate) fn key(&self, shape: &StepShape, mode: Mode, region: Region, microbatches: usize) -> GraphKey {
        let region_of_slot = self.plan.canonical(region, microbatches);
        GraphKey { region: region_of_slot, variant: shape.variant(mode, region, microbatches) }
    }

    /// Plans anew where a step with another number of microbatches needs more slots. It may with fewer of them: of an
    /// interleaved pipeline's last group, if it is not whole, more can be in flight.
    fn make_room(&mut self, recording: &Recording, options: &GraphOptions, shape: &StepShape, compute: StreamId) {
        let needed = recording.in_flight(shape);
        let slots: Vec<usize> = needed.iter().zip(&self.plan.slots).map(|(a, b)| *a.max(b)).collect();
        let largest = self.recordings.values().next_back().filter(|known| known.microbatches > recording.microbatches);
        if slots != self.plan.slots {
            self.plan = Plan::new(largest.unwrap_or(recording), slots, options, shape, compute);
        }
    }

    /// Whether a step with another number of microbatches fits the plan.
    fn accept(&self, recording: &Recording, shape: &StepShape) -> Result<()> {
        for (in_flight, slots) in recording.in_flight(shape).iter().zip(&self.plan.slots) {
            if in_flight > slots {
                return Err(Error::Usage {
                    problem: format!("{in_flight} microbatches are in flight at once, the plan has {slots} slots"),
                    fix: "record every number of microbatches that will come before the first step",
                });
            }
        }
        for buffer in &recording.buffers {
            let region = recording.order[buffer.visit].region;
            let key = self.plan.canonical(region, recording.microbatches);
            let planned = self.plan.placement(key, buffer.index);
            if planned.is_none_or(|planned| planned.bytes != buffer.bytes) {
                return Err(Error::Changed {
                    region: region.to_string(),
                    problem: format!("buffer `{}` of {} bytes was not in the plan", buffer.name, buffer.bytes),
                    fix: "keep shapes the same from step to step, or make a new manager",
                });
            }
        }
        Ok(())
    }
}
