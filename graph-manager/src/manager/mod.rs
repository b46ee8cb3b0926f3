//! The manager, and the memory that steps need.

mod forgotten;
mod protected;
mod state;

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use device::{Area, Communicator, Event, Home, SharedArea, Snapshot, Stream};

use crate::error::{Error, Result};
use crate::keys::{StepKey, step_key};
use crate::memory::{AreaKind, Binding, Plan, Pool, raise};
use crate::options::{ManagerOptions, Mempool};
use crate::policy::Policy;
use crate::program::Program;
pub use forgotten::Forgotten;
pub(crate) use protected::Protected;
pub(crate) use state::{Captured, State};

/// Runs steps. The code of a step is called once: it makes the step's list, and nothing runs. The list has the order of
/// all layers; memory is planned from it. Then come warm-up steps, which submit the list. After them each region is
/// captured and launched when the step first comes to it, and from then on replayed.
pub struct CudaGraphManager<P: Policy> {
    // Fields drop in order: graphs before the memory they point into.
    pub(crate) states: BTreeMap<StepKey<P::Mode>, State<P>>,
    /// Areas that other GPUs write into. All ranks drop an entry together. So an area is planned anew only before the first step,
    /// when none is shared yet, or in a step, which all ranks begin.
    pub(crate) shared: Vec<Shared>,
    /// Whether all areas that must be shared are.
    pub(crate) all_shared: bool,
    pub(crate) areas: BTreeMap<AreaKind, Rc<Area>>,
    /// For waits between queues.
    pub(crate) events: Vec<Event>,
    /// Memory that the next step must not write too early.
    pub(crate) protected: Option<Protected>,
    /// The state before the last verified step. Its memory serves the next one.
    pub(crate) put_aside: Snapshot,
    pub(crate) pool: Pool,
    pub(crate) options: ManagerOptions,
    pub(crate) policy: P,
    /// Steps begun.
    pub(crate) steps: u64,
    /// Replays for which the code was called again and made the same list.
    pub(crate) compared: u64,
    /// The plans that `plan_limit` had forgotten.
    pub(crate) forgotten: Forgotten,
    /// Called before the first capture of each mode and plan, and before that of a rehearsal.
    pub(crate) before_capture: Box<dyn Fn() -> Result<()>>,
}

/// An area that the ranks of a communicator share: their GPUs write rows into it.
pub(crate) struct Shared {
    area: AreaKind,
    with: Rc<dyn Communicator>,
    /// `None` if no other GPU does.
    _held: Option<SharedArea>,
}

impl<P: Policy> CudaGraphManager<P> {
    /// The policy: it describes regions to the manager.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// A manager of steps. Their regions run on `compute`.
    ///
    /// # Errors
    /// [`Error::Usage`] when graphs are on without a warm-up step.
    pub fn new(compute: Stream, options: ManagerOptions, policy: P) -> Result<CudaGraphManager<P>> {
        CudaGraphManager::in_pool(&Pool::new(compute), options, policy)
    }

    /// A manager of steps. Their regions run on the pool's stream and share scratch with the pool's other users.
    ///
    /// # Errors
    /// As [`CudaGraphManager::new`].
    pub fn in_pool(pool: &Pool, options: ManagerOptions, policy: P) -> Result<CudaGraphManager<P>> {
        if options.enable {
            check_warm_up("ManagerOptions has a `warmup_steps`", options.warmup_steps)?;
        }
        Ok(CudaGraphManager {
            states: BTreeMap::new(),
            shared: Vec::new(),
            all_shared: true,
            areas: BTreeMap::new(),
            events: Vec::new(),
            protected: None,
            pool: pool.clone(),
            options,
            policy,
            steps: 0,
            compared: 0,
            forgotten: Forgotten::default(),
            put_aside: Snapshot::default(),
            before_capture: Box::new(|| Ok(())),
        })
    }

    /// Has `barrier` called before the first capture of each mode and plan, and of a rehearsal, so that all ranks begin
    /// together.
    pub fn before_capture(&mut self, barrier: impl Fn() -> Result<()> + 'static) {
        self.before_capture = Box::new(barrier);
    }

    /// The number of replays, captures included, for which the code was called again and did the same as the graph.
    pub fn compared_replays(&self) -> u64 {
        self.compared
    }

    /// The kind of a step with so many microbatches.
    pub(crate) fn step_key(&self, mode: P::Mode, microbatches: usize) -> StepKey<P::Mode> {
        step_key(self.options.mempool, mode, microbatches)
    }

    /// Whether a step of that kind has a list and a plan.
    pub(crate) fn is_planned(&self, mode: P::Mode, microbatches: usize) -> bool {
        self.states
            .get(&self.step_key(mode, microbatches))
            .is_some_and(|state| state.programs.contains_key(&microbatches))
    }

    /// The state of a kind of step that was recorded.
    pub(crate) fn state_mut(&mut self, key: StepKey<P::Mode>) -> &mut State<P> {
        self.states.get_mut(&key).unwrap_or_else(|| unreachable!("a step runs after it was recorded"))
    }

    /// The reason why a region runs eagerly; `None` if the region becomes a graph.
    pub(crate) fn why_eager(&self, program: &Program<P::Region>, visit: usize) -> Option<&'static str> {
        if !self.options.enable {
            return Some("graphs are off");
        }
        // Copies of its inputs come before its graph.
        let empty = program.in_graph(visit).is_empty().then_some("it submits nothing");
        self.policy.captured(program.visits[visit].region).err().or(empty)
    }

    /// The regions that are not submitted as part of a captured region: the index of each in the recorded order, and
    /// for an eager one the reason.
    pub(crate) fn submitted(
        &self,
        program: &Program<P::Region>,
    ) -> impl Iterator<Item = (usize, Option<&'static str>)> {
        let mut next = 0;
        program.visits.iter().enumerate().filter_map(move |(at, visit)| {
            if at < next {
                return None;
            }
            let eager = self.why_eager(program, at);
            if eager.is_none() {
                next = visit.next();
            }
            Some((at, eager))
        })
    }

    /// Keeps a list: plans its memory, or checks that it fits the plan of an earlier one.
    pub(crate) fn plan(&mut self, mode: P::Mode, program: Program<P::Region>, output: Box<dyn Any>) -> Result<()> {
        program.check()?;
        #[cfg(feature = "trainer-ops")]
        self.refuse_shared_records(&program)?;
        let key = self.step_key(mode, program.microbatches);
        let (compute, poisons) = (self.pool.compute().id(), self.options.poison);
        match self.states.get_mut(&key) {
            None => {
                let state = State::new(self.options.mempool, program, output, compute, poisons)?;
                self.forget_oldest()?;
                self.states.insert(key, state);
            }
            Some(state) => state.add(program, output, compute, self.areas.is_empty(), poisons)?,
        }
        let device = self.pool.device();
        self.states.entry(key).and_modify(|state| state.hold_queues(device));
        Ok(())
    }

    /// Bytes that the recorded modes need, by area.
    pub(crate) fn planned(&self) -> BTreeMap<AreaKind, usize> {
        let mut sizes = BTreeMap::new();
        for state in self.states.values() {
            raise(&mut sizes, &state.plan.areas);
        }
        sizes
    }

    /// Bytes of the device that the recorded modes need.
    fn planned_on_device(&self) -> usize {
        bytes_on_device(&self.planned())
    }

    /// Bytes of the device that the recorded modes would need with that pool.
    fn planned_as(&self, mempool: Mempool) -> usize {
        let mut kinds: BTreeMap<StepKey<P::Mode>, Vec<&Program<P::Region>>> = BTreeMap::new();
        for (key, state) in &self.states {
            for program in state.programs.values() {
                kinds.entry(step_key(mempool, key.0, program.microbatches)).or_default().push(&**program);
            }
        }
        let mut sizes = BTreeMap::new();
        for programs in kinds.values() {
            raise(&mut sizes, &Plan::new(mempool, programs, self.pool.compute().id(), false).areas);
        }
        bytes_on_device(&sizes)
    }

    /// Allocates the memory that the recorded modes need and that is not there yet. Modes share memory: one runs at a
    /// time. An area that is too small is replaced at another address, so all graphs are captured again.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate(&mut self) -> Result<()> {
        let planned = self.planned();
        let fits = |kind: &AreaKind, area: &Rc<Area>| planned.get(kind).is_none_or(|bytes| area.bytes() >= *bytes);
        if !self.areas.iter().all(|(kind, area)| fits(kind, area)) {
            self.pool.compute().synchronize()?;
            self.states.values_mut().for_each(State::forget_graphs);
            self.shared.retain(|shared| self.areas.get(&shared.area).is_some_and(|area| fits(&shared.area, area)));
            self.areas.retain(|kind, area| fits(kind, area));
        }
        for (kind, bytes) in planned {
            if self.areas.get(&kind).is_some_and(|area| area.bytes() >= bytes) {
                continue;
            }
            let name = kind.name(self.pool.device());
            let area = match kind {
                AreaKind::Scratch(stream) => self.pool.scratch(stream, &name, bytes),
                _ => self.pool.device().allocate_in(kind.home(), &name, bytes).map(Rc::new).map_err(Error::from),
            };
            let area = area.map_err(|error| match kind.home() {
                Home::Device => self.out_of_memory(error),
                Home::Host => error,
            })?;
            self.areas.insert(kind, area);
        }
        self.states.values_mut().for_each(|state| state.bindings.clear());
        self.all_shared = false;
        Ok(())
    }

    /// Shares the areas with the ranks that exchange rows with this rank, unless that was done. It comes with a step,
    /// which all of them begin: a rank may record steps and allocate memory before the others do.
    pub(crate) fn share(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.all_shared, true) {
            return Ok(());
        }
        let programs = self.states.values().flat_map(|state| state.programs.values());
        for with in programs.flat_map(|program| program.communicators_of_rows()) {
            for (&kind, area) in self.areas.iter().filter(|(kind, _)| kind.home() == Home::Device) {
                if !self.shared.iter().any(|shared| shared.area == kind && Rc::ptr_eq(&shared.with, with)) {
                    let _held = with.share(area.addresses())?;
                    self.shared.push(Shared { area: kind, with: with.clone(), _held });
                }
            }
        }
        Ok(())
    }

    /// The addresses of the buffers of a recorded step.
    pub(crate) fn binding(&mut self, key: StepKey<P::Mode>, microbatches: usize) -> Rc<Binding> {
        let state = &self.states[&key];
        if let Some(binding) = state.bindings.get(&microbatches) {
            return binding.clone();
        }
        let binding = Rc::new(state.bind(&self.areas, microbatches));
        self.state_mut(key).bindings.insert(microbatches, binding.clone());
        binding
    }

    /// Adds to an out-of-memory error the size of the plan, and the size with the other pool.
    fn out_of_memory(&self, error: Error) -> Error {
        let Error::Device { source: device::Error::OutOfMemory { name, bytes, available }, .. } = error else {
            return error;
        };
        let other = match self.options.mempool {
            Mempool::Single => Mempool::PerMicrobatch,
            Mempool::PerMicrobatch => Mempool::Single,
        };
        let (planned, with_other) = (self.planned_on_device(), self.planned_as(other));
        Error::OutOfMemory { area: name, bytes, available, planned, other, with_other }
    }

    /// Makes sure that a step of that kind has memory. If it was recorded after memory was allocated and needs more,
    /// areas move, so all graphs are captured again.
    pub(crate) fn make_room(&mut self, key: StepKey<P::Mode>) -> Result<()> {
        let fits = |(kind, bytes): (&AreaKind, &usize)| self.areas.get(kind).is_some_and(|area| area.bytes() >= *bytes);
        if self.states[&key].plan.areas.iter().all(fits) {
            return Ok(());
        }
        if !self.areas.is_empty() {
            tracing::warn!(
                mode = ?key.0,
                "a step came that needs more memory than was planned: all graphs are captured again. \
                 Record every mode and number of microbatches before the first step to avoid this"
            );
        }
        self.allocate()
    }

    /// Keeps the number of plans within the bound: the one that has not run for the longest time is dropped with its
    /// graphs.
    fn forget_oldest(&mut self) -> Result<()> {
        if self.states.len() < self.options.plan_limit.get() {
            return Ok(());
        }
        let oldest = self.states.iter().min_by_key(|(_, state)| state.last_used).map(|(key, _)| *key);
        if let Some(key) = oldest {
            tracing::warn!(
                mode = ?key.0,
                limit = self.options.plan_limit,
                "more kinds of steps than plan_limit: the one that has not run for the longest time is forgotten, and is \
                 recorded and captured again if it comes back. Use fewer shapes, or raise plan_limit"
            );
            self.pool.compute().synchronize()?;
            let state = self.states.remove(&key);
            let had_graph = !self.options.enable || state.is_some_and(|state| state.begun);
            self.forgotten.add(had_graph, self.options.plan_limit);
        }
        Ok(())
    }

    /// Forgets recordings, plans and graphs, and gives all memory back. The next step begins anew: it is recorded,
    /// warms up and is captured again. Use it after a change that a graph cannot follow, such as another number format.
    ///
    /// # Errors
    /// A failed transfer that was under way.
    pub fn reset(&mut self) -> Result<()> {
        self.pool.compute().synchronize()?;
        self.states.clear();
        self.shared.clear();
        self.areas.clear();
        Ok(())
    }
}

/// Fails without a warm-up run. `what` has that number of them.
pub(crate) fn check_warm_up(what: &str, runs: usize) -> Result<()> {
    if runs > 0 {
        return Ok(());
    }
    let problem = format!("{what} of 0, but every kernel and collective must have run once before it is captured");
    Err(Error::usage(problem, "set it to 1 or more"))
}

fn bytes_on_device(sizes: &BTreeMap<AreaKind, usize>) -> usize {
    sizes.iter().filter(|(kind, _)| kind.home() == Home::Device).map(|(_, bytes)| bytes).sum()
}
