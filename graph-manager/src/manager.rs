//! The manager: what is recorded, planned, captured and replayed.

use std::collections::{BTreeMap, HashSet};

use device::Stream;

use crate::area::MemoryUse;
use crate::context::{Phase, StepContext};
use crate::error::{Error, Result};
use crate::keys::StepKey;
use crate::options::ManagerOptions;
use crate::policy::Policy;
use crate::pool::Pool;
use crate::report::{GraphReport, Launch, Report, StepReport};
use crate::resources::Resources;
use crate::tensor_tree::TensorTree;

/// Runs steps. The first pass over a step is a recording in which nothing runs, and from which memory is planned. Then
/// come eager warm-up steps. After them each region is captured and launched where the step first meets it, and from then
/// on replayed.
pub struct CudaGraphManager<P: Policy> {
    pub(crate) resources: Resources<P>,
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
        CudaGraphManager::in_pool(&Pool::new(compute), options, policy)
    }

    /// A manager of steps whose regions run on the pool's stream and share scratch with the pool's other users.
    ///
    /// # Errors
    /// As [`CudaGraphManager::new`].
    pub fn in_pool(pool: &Pool, options: ManagerOptions, policy: P) -> Result<CudaGraphManager<P>> {
        if options.enable && options.warmup_steps == 0 {
            return Err(Error::Usage {
                problem: "warmup_steps is 0, but every collective must have run once before it is captured".into(),
                fix: "set warmup_steps to 1 or more",
            });
        }
        let resources = Resources {
            states: BTreeMap::new(),
            areas: BTreeMap::new(),
            pool: pool.clone(),
            device: pool.device().clone(),
            compute: pool.compute().clone(),
            steps: 0,
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
    /// microbatches that will come, before the first [`CudaGraphManager::step`], which allocates: where a later one needs
    /// more memory, all graphs are captured again.
    ///
    /// # Errors
    /// What `body` returns; [`Error::Usage`] when the step cannot be planned, or does not fit an earlier recording of the
    /// mode.
    pub fn record(&mut self, mode: P::Mode, microbatches: usize, body: Body<'_, P>) -> Result<()> {
        let device = self.resources.device.clone();
        self.resources.pool.check_free()?;
        if device.is_tracing() || self.resources.compute.is_capturing() {
            return Err(Error::Usage {
                problem: "a step was recorded inside a region of another step".into(),
                fix: "run it before, often enough for it to have its graph",
            });
        }
        device.begin_trace();
        let pool = self.resources.pool.clone();
        let mut cx = StepContext::record(&mut self.resources, mode, microbatches);
        let result = pool.during(|| body(&mut cx)).and_then(|()| cx.check_deferred());
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

    /// Forgets recordings, plans and graphs, and gives their memory back. The next step begins anew: it is recorded, warms up
    /// and is captured again. Use it after a change that a graph cannot follow, such as another number format.
    ///
    /// # Errors
    /// A failed transfer that was under way.
    pub fn reset(&mut self) -> Result<()> {
        self.resources.reset()
    }

    /// Bytes that the recorded modes need, by area.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let planned = self.resources.planned().into_iter();
        planned.map(|(kind, bytes)| MemoryUse { area: kind.to_string(), bytes }).collect()
    }

    /// Graphs that recorded steps of the mode will have: each region that is captured, by slot and variant.
    pub fn expected_graphs(&self, mode: P::Mode) -> usize {
        let Resources { states, policy, .. } = &self.resources;
        let mut keys = HashSet::new();
        for (kind, state) in states.iter().filter(|(kind, _)| kind.0 == mode) {
            for recording in state.recordings.values() {
                let captured = |visit: usize| self.resources.captured(recording, visit).is_ok();
                for visit in recording.submitted(captured).filter(|visit| captured(*visit)) {
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
        self.resources.make_room(key)?;
        self.resources.steps += 1;
        let steps = self.resources.steps;
        self.resources.states.get_mut(&key).iter_mut().for_each(|state| state.last_used = steps);
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
            self.pass(mode, microbatches, graphs, body)?;
        }
        Ok(())
    }

    /// Whether all captured regions of a recorded step are without regions inside them.
    fn captures_leaves(&self, key: StepKey<P::Mode>, microbatches: usize) -> bool {
        let recording = &self.resources.states[&key].recordings[&microbatches];
        let captured = |visit: usize| self.resources.captured(recording, visit).is_ok();
        recording.submitted(captured).all(|visit| !recording.is_composite(visit) || !captured(visit))
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
        if graphs && let Some(state) = self.resources.states.get_mut(&key).filter(|state| !state.begun) {
            state.begun = true;
            self.before_capture.as_ref().map_or(Ok(()), |barrier| barrier())?;
        }
        let result = self.pass(mode, microbatches, graphs, &mut |cx| body(cx).and_then(|()| cx.check_complete()));
        if let Some(state) = self.resources.states.get_mut(&key) {
            state.steps += 1;
        }
        result
    }

    /// Goes through the code of a step, and leaves the device as it was, however the step ends.
    fn pass(&mut self, mode: P::Mode, microbatches: usize, graphs: bool, body: Body<'_, P>) -> Result<()> {
        let device = self.resources.device.clone();
        let (scope, pool) = (device.scope(), self.resources.pool.clone());
        let mut cx = StepContext::run_step(&mut self.resources, mode, microbatches, graphs);
        let result = pool.during(|| body(&mut cx));
        device.set_scope(&scope);
        result
    }

    /// Replays one region of a step that is captured, outside of a step. `position` is the region's index in the recorded
    /// order; its code is `body`.
    ///
    /// # Errors
    /// As [`StepContext::region`].
    pub(crate) fn replay<I: TensorTree, O: TensorTree>(
        &mut self,
        (mode, microbatches, position): (P::Mode, usize, usize),
        region: P::Region,
        input: I,
        body: impl for<'m> FnOnce(&mut StepContext<'m, P>, I) -> Result<O>,
    ) -> Result<O> {
        let (mut body, mut output) = (Some((body, input)), None);
        self.pass(mode, microbatches, true, &mut |cx| {
            cx.phase = Phase::Run { graphs: true, position };
            if let Some((body, input)) = body.take() {
                output = Some(cx.region(region, input, body)?);
            }
            Ok(())
        })?;
        match output {
            Some(output) => Ok(output),
            None => unreachable!("the pass calls its code once"),
        }
    }

    /// Whether steps of that kind no longer warm up or capture.
    pub fn is_settled(&self, mode: P::Mode, microbatches: usize) -> bool {
        let warm_up = if self.resources.options.enable { self.resources.options.warmup_steps } else { 0 };
        let key = self.resources.step_key(mode, microbatches);
        self.resources.states.get(&key).is_some_and(|state| state.steps > warm_up)
    }

    /// What has been captured so far.
    pub fn report(&self) -> Report {
        let Resources { states, policy, .. } = &self.resources;
        let mut report = Report { graphs: Vec::new(), eager: Vec::new(), memory: self.memory(), steps: Vec::new() };
        for (kind, state) in states {
            let (mode, first) = (format!("{:?}", kind.0), report.graphs.len());
            let of_key = |key| GraphReport::new(&state.graphs[key].graph, mode.clone(), key.code.region.slot);
            report.graphs.extend(state.captured.iter().map(of_key));
            for recording in state.recordings.values() {
                let captured = |visit: usize| self.resources.captured(recording, visit);
                let mut order = Vec::new();
                for visit in recording.submitted(|visit| captured(visit).is_ok()) {
                    let region = recording.order[visit].region;
                    let microbatch = policy.instance(region).map(|instance| instance.microbatch);
                    let key = state.graph_key(policy, kind.0, recording, visit);
                    let at = state.captured.iter().position(|captured| *captured == key);
                    match captured(visit) {
                        // A composite region is described by the regions in it.
                        Err(_) if recording.is_composite(visit) => continue,
                        Err(reason) => report.add_eager(policy.kind(region), reason),
                        Ok(()) => {}
                    }
                    let graph = at.filter(|_| captured(visit).is_ok()).map(|at| first + at);
                    if let Some(graph) = graph {
                        report.graphs[graph].serve(microbatch, recording.bytes(visit));
                    }
                    order.push(Launch { region: region.to_string(), microbatch, graph });
                }
                report.steps.push(StepReport { mode: mode.clone(), microbatches: recording.microbatches, order });
            }
        }
        report
    }
}
