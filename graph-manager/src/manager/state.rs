//! The state of one kind of step in a manager.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::hash::Hash;
use std::rc::Rc;

use crate::words::counted;
use device::{Area, Device, Graph, Stream, StreamId};

use crate::error::{Error, Result};
use crate::keys::GraphKey;
use crate::memory::{AreaKind, Binding, BoundBuffer, PlacedBuffer, Plan, Pool, check_flights, in_flight, slots};
use crate::options::Mempool;
use crate::policy::Policy;
use crate::program::{Extent, Program, Schedule};

/// The recordings, plan and graphs of one kind of step.
pub(crate) struct State<P: Policy> {
    /// By number of microbatches.
    pub(crate) programs: BTreeMap<usize, Rc<Program<P::Region>>>,
    /// The result that the code of each returned, with tensors of the recording.
    pub(crate) outputs: BTreeMap<usize, Box<dyn Any>>,
    /// The queues of all lists: they stay, also if the code that recorded a list has dropped its own.
    queues: Vec<Stream>,
    pub(crate) plan: Plan<P::Region>,
    /// The addresses for the lists that have run, by number of microbatches.
    pub(crate) bindings: BTreeMap<usize, Rc<Binding>>,
    /// The actions of the host that run a list or an extent of one, by number of microbatches, and with graphs or
    /// without.
    pub(crate) schedules: HashMap<(usize, bool, Extent), Rc<Schedule>>,
    /// By key: the graph's index in `graphs`.
    pub(crate) graph_numbers: HashMap<GraphKey<P::Region>, u32>,
    /// The graphs in the order of the schedules' first need; `None` if a graph is not captured yet.
    pub(crate) graphs: Vec<Option<Captured>>,
    /// Steps done.
    pub(crate) steps: usize,
    /// The lists that have run, by number of microbatches: whether each was compared since with one made anew.
    pub(crate) compared: BTreeMap<usize, bool>,
    /// The draws into each random record when a step last used the record.
    #[cfg(feature = "trainer-ops")]
    pub(crate) draws: HashMap<device::BufferId, u64>,
    /// Whether the first capture of the kind of step has begun.
    pub(crate) begun: bool,
    /// The last run of the kind of step, in steps of the manager.
    pub(crate) last_used: u64,
}

/// A region's graph.
pub(crate) struct Captured {
    /// The graph's place in the order of capture, from 0.
    pub(crate) number: usize,
    pub(crate) graph: Graph,
    pub(crate) pool: Pool,
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.pool.hook(|hooks| hooks.before_drop(self.graph.name()));
    }
}

impl<P: Policy> State<P> {
    /// Holds the queues of all lists.
    pub(crate) fn hold_queues(&mut self, device: &Device) {
        let queues = self.programs.values().flat_map(|program| program.queues());
        self.queues = queues.map(|queue| device.stream_named(*queue)).collect();
    }

    /// Plans a step as recorded.
    pub(crate) fn new(
        mempool: Mempool,
        program: Program<P::Region>,
        output: Box<dyn Any>,
        compute: StreamId,
        poisons: bool,
    ) -> Result<State<P>> {
        let plan = Plan::new(mempool, &[&program], compute, poisons);
        plan.slots.as_ref().map_or(Ok(()), |slots| check_flights(&program, slots))?;
        Ok(State {
            outputs: BTreeMap::from([(program.microbatches, output)]),
            programs: BTreeMap::from([(program.microbatches, Rc::new(program))]),
            queues: Vec::new(),
            plan,
            bindings: BTreeMap::new(),
            schedules: HashMap::new(),
            graph_numbers: HashMap::new(),
            graphs: Vec::new(),
            steps: 0,
            compared: BTreeMap::new(),
            #[cfg(feature = "trainer-ops")]
            draws: HashMap::new(),
            begun: false,
            last_used: 0,
        })
    }

    /// Forgets graphs.
    pub(crate) fn forget_graphs(&mut self) {
        self.graphs.clear();
        self.graph_numbers.clear();
        self.schedules.clear();
        self.begun = false;
    }

    /// The graphs, each with a key, in the order of capture.
    pub(crate) fn captured(&self) -> Vec<(&GraphKey<P::Region>, &Captured)> {
        let captured = |number: u32| self.graphs[number as usize].as_ref();
        let mut graphs: Vec<_> =
            self.graph_numbers.iter().filter_map(|(key, number)| Some((key, captured(*number)?))).collect();
        graphs.sort_by_key(|(_, captured)| captured.number);
        graphs
    }

    /// The keys of the graphs of the visits `captured` of a list, in turn.
    pub(crate) fn graph_keys(
        &self,
        program: &Program<P::Region>,
        captured: impl IntoIterator<Item = usize>,
    ) -> Vec<GraphKey<P::Region>> {
        let places = self.places(program);
        let digest = program.digests(|index, hasher| (places[index].area, places[index].offset).hash(hasher));
        let key = |visit: usize| GraphKey {
            region: self.plan.key(&program.visits[visit], program.microbatches),
            digest: digest(visit),
        };
        captured.into_iter().map(key).collect()
    }

    /// By buffer of a list: its place in the plan.
    fn places(&self, program: &Program<P::Region>) -> Vec<PlacedBuffer> {
        let planned = &self.programs[&self.plan.microbatches];
        let unplanned = || unreachable!("a step that does not fit its plan is not accepted");
        let mut places = vec![None; program.buffers.len()];
        for (at, visit) in program.visits.iter().enumerate() {
            let stands_for_it = self.plan.visit(&self.plan.key(visit, program.microbatches));
            for (number, (index, _)) in program.owned(at).enumerate() {
                let placed = stands_for_it.and_then(|visit| self.plan.placement(planned, visit, number));
                places[index] = Some(placed.unwrap_or_else(unplanned).0);
            }
        }
        places.into_iter().map(|place| place.unwrap_or_else(|| unreachable!("a visit takes each buffer"))).collect()
    }

    /// Adds a step with another number of microbatches. `may_move`: nothing lies at the planned addresses yet.
    ///
    /// # Errors
    /// It does not fit the plan.
    pub(crate) fn add(
        &mut self,
        program: Program<P::Region>,
        output: Box<dyn Any>,
        compute: StreamId,
        may_move: bool,
        poisons: bool,
    ) -> Result<()> {
        // A step with another number of microbatches may need more slots, even with fewer microbatches: in an
        // interleaved pipeline more are in flight if the last group is not whole.
        let all: Vec<_> = self.programs.values().map(|program| &**program).chain([&program]).collect();
        let outgrown = may_move && self.plan.slots.as_ref().is_some_and(|known| *known != slots(&all));
        let plan = outgrown.then(|| Plan::new(Mempool::PerMicrobatch, &all, compute, poisons));
        match &plan {
            Some(plan) if plan.microbatches == program.microbatches => accept(&program, plan, &program)?,
            Some(plan) => accept(&program, plan, &self.programs[&plan.microbatches])?,
            None => accept(&program, &self.plan, &self.programs[&self.plan.microbatches])?,
        }
        if let Some(plan) = plan {
            self.plan = plan;
        }
        self.outputs.insert(program.microbatches, output);
        self.programs.insert(program.microbatches, Rc::new(program));
        // The plan may now be made from another list.
        self.bindings.clear();
        Ok(())
    }

    /// The addresses of a list's buffers in the areas of the plan.
    pub(crate) fn bind(&self, areas: &BTreeMap<AreaKind, Rc<Area>>, microbatches: usize) -> Binding {
        let place = |placed: PlacedBuffer| BoundBuffer {
            address: areas[&placed.area].address() + placed.offset as u64,
            buffer: placed.buffer,
        };
        Binding::new(self.places(&self.programs[&microbatches]).into_iter().map(place).collect())
    }
}

/// Fails if a step does not fit a plan. The plan was made from the `planned` list.
fn accept<R: Copy + Eq + Hash + Display + 'static>(
    program: &Program<R>,
    plan: &Plan<R>,
    planned: &Program<R>,
) -> Result<()> {
    if let Some(slots) = &plan.slots {
        for (chunk, in_flight) in in_flight(program) {
            let slots = slots.get(&chunk).copied().unwrap_or(0);
            if in_flight > slots {
                let slots = counted(slots, "slot");
                let problem = format!("{in_flight} microbatches are in flight at once, the plan has {slots}");
                let fix = "record every number of microbatches that will come before the first step";
                return Err(Error::usage(problem, fix));
            }
        }
        check_flights(program, slots)?;
    }
    for (at, (buffer, index)) in program.taken_in_order().enumerate() {
        let of = &program.visits[buffer.visit()];
        let (region, visit) = (of.region, plan.visit(&plan.key(of, program.microbatches)));
        let known = visit.and_then(|visit| plan.placement(planned, visit, index));
        if known.is_none_or(|(known, _)| known.bytes != buffer.bytes) {
            let name = program.own(buffer.visit(), index).map_or("", |(_, name)| name);
            let problem = format!("buffer `{name}` of {} bytes was not in the plan", buffer.bytes);
            let fix = "give each shape a mode of its own, or call CudaGraphManager::reset";
            return Err(Error::changed(region, problem, fix));
        }
        let stands_for_it = visit.and_then(|visit| planned.own(visit, index));
        if let Some((_, name)) = stands_for_it.filter(|(other, _)| program.is_kept(at) && !planned.is_kept(*other)) {
            let problem =
                format!("buffer `{name}` is kept to the end of the step, and was not when memory was planned");
            let fix = "return it from steps with every number of microbatches, or set mempool to Single";
            return Err(Error::changed(region, problem, fix));
        }
    }
    Ok(())
}
