//! What a manager knows of one kind of step.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use common::format::counted;
use device::{Area, Graph, Op, StreamId, Tensor};

use crate::binding::Binding;
use crate::error::{Error, Result};
use crate::keys::{CodeKey, GraphKey, SavedKey};
use crate::options::Mempool;
use crate::plan::{AreaKind, Placement, Plan};
use crate::policy::Policy;
use crate::program::Program;
use crate::slots::{check_flights, in_flight, slots};

/// The recordings, plan and graphs of one kind of step.
pub(crate) struct State<P: Policy> {
    /// By number of microbatches.
    pub(crate) programs: BTreeMap<usize, Program<P::Region>>,
    pub(crate) plan: Plan<P::Region>,
    /// Where the planned list lies; `None` without memory.
    pub(crate) binding: Option<Binding>,
    pub(crate) handover: Handover<P>,
    pub(crate) graphs: HashMap<GraphKey<P::Region, P::Variant>, Captured>,
    /// Steps done.
    pub(crate) steps: usize,
    /// Whether its first capture has begun.
    pub(crate) begun: bool,
    /// When it last ran, in steps of the manager.
    pub(crate) last_used: u64,
}

/// What the code of one region leaves for another: values saved for backward, and deferred operations. A replayed region
/// runs no code, so what its capture left stays.
pub(crate) struct Handover<P: Policy> {
    pub(crate) saved: HashMap<SavedKey<P::Region, P::Variant>, Saved>,
    /// By the region that deferred them, in the order of submission.
    pub(crate) deferred: HashMap<CodeKey<P::Region, P::Variant>, Vec<Op>>,
}

/// A value that was saved for backward.
pub(crate) struct Saved {
    pub(crate) value: Box<dyn Any>,
    /// Index in the recorded order of the region that saved it.
    pub(crate) by: usize,
    pub(crate) is_read: bool,
    /// The same region saved a value before that nothing had read.
    pub(crate) replaces_unread: bool,
}

impl<P: Policy> Default for Handover<P> {
    fn default() -> Handover<P> {
        Handover { saved: HashMap::new(), deferred: HashMap::new() }
    }
}

/// A region's graph, what it was captured with and what it returned.
pub(crate) struct Captured {
    /// How many were captured before it.
    pub(crate) number: usize,
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) output: Box<dyn Any>,
}

impl<P: Policy> State<P> {
    /// Plans a step as recorded.
    pub(crate) fn new(
        mempool: Mempool,
        program: Program<P::Region>,
        policy: &P,
        compute: StreamId,
        poisons: bool,
    ) -> Result<State<P>> {
        let plan = Plan::new(mempool, &[&program], policy, compute, poisons);
        plan.slots.as_ref().map_or(Ok(()), |slots| check_flights(&program, slots, policy))?;
        Ok(State {
            programs: BTreeMap::from([(program.microbatches, program)]),
            plan,
            binding: None,
            handover: Handover::default(),
            graphs: HashMap::new(),
            steps: 0,
            begun: false,
            last_used: 0,
        })
    }

    /// Forgets graphs, and values that point into memory.
    pub(crate) fn forget_graphs(&mut self) {
        self.graphs.clear();
        self.handover = Handover::default();
        self.begun = false;
    }

    /// The key of a region's code in a step with so many microbatches.
    pub(crate) fn code_key(
        &self,
        policy: &P,
        mode: P::Mode,
        region: P::Region,
        microbatches: usize,
    ) -> CodeKey<P::Region, P::Variant> {
        let variant = policy.variant(mode, region, microbatches);
        CodeKey { region: self.plan.key(policy, region, microbatches), variant }
    }

    /// The key of the graph of the region at this index of the recorded order.
    pub(crate) fn graph_key(
        &self,
        policy: &P,
        mode: P::Mode,
        program: &Program<P::Region>,
        visit: usize,
    ) -> GraphKey<P::Region, P::Variant> {
        let microbatches = program.microbatches;
        GraphKey {
            code: self.code_key(policy, mode, program.visits[visit].region, microbatches),
            microbatches: program.is_composite(visit).then_some(microbatches),
        }
    }

    /// Adds a step with another number of microbatches. `may_move`: nothing lies at the planned addresses yet.
    ///
    /// # Errors
    /// It does not fit the plan.
    pub(crate) fn add(
        &mut self,
        program: Program<P::Region>,
        policy: &P,
        compute: StreamId,
        may_move: bool,
        poisons: bool,
    ) -> Result<()> {
        // A step with other microbatches may need more slots, even one with fewer: in an interleaved pipeline more are in
        // flight if the last group is not whole.
        let all: Vec<_> = self.programs.values().chain([&program]).collect();
        let outgrown = may_move && self.plan.slots.as_ref().is_some_and(|known| *known != slots(&all, policy));
        let plan = outgrown.then(|| Plan::new(Mempool::PerMicrobatch, &all, policy, compute, poisons));
        match &plan {
            Some(plan) if plan.microbatches == program.microbatches => accept(&program, plan, &program, policy)?,
            Some(plan) => accept(&program, plan, &self.programs[&plan.microbatches], policy)?,
            None => accept(&program, &self.plan, &self.programs[&self.plan.microbatches], policy)?,
        }
        if let Some(plan) = plan {
            self.plan = plan;
        }
        self.programs.insert(program.microbatches, program);
        // The planned list may be another.
        self.binding = None;
        Ok(())
    }

    /// The visit of the planned list that stands for a region in a step with so many microbatches.
    pub(crate) fn planned_visit(&self, policy: &P, region: P::Region, microbatches: usize) -> Option<usize> {
        self.plan.visit(&self.plan.key(policy, region, microbatches))
    }

    /// Where the buffer of that number of a visit of the planned list lies, and its name.
    pub(crate) fn placement(&self, visit: Option<usize>, index: usize) -> Option<(Placement, &'static str)> {
        self.plan.placement(&self.programs[&self.plan.microbatches], visit?, index)
    }

    /// Binds the planned list to the areas of its plan.
    pub(crate) fn bind(&mut self, areas: &BTreeMap<AreaKind, Rc<Area>>) {
        let program = &self.programs[&self.plan.microbatches];
        let address = |index: usize| {
            let placed = self.plan.place_of(program, index)?;
            Some(areas[&placed.area].address() + placed.offset as u64)
        };
        self.binding = Some(Binding::new((0..program.buffers.len()).map(address)));
    }

    /// The address of the buffer of that number of a visit of the planned list.
    pub(crate) fn address(&self, visit: Option<usize>, index: usize) -> Option<u64> {
        let (at, _) = self.programs[&self.plan.microbatches].own(visit?, index)?;
        self.binding.as_ref()?.address(at)
    }

    /// A tensor of a list at its planned address, as the buffer that stands for its own in all microbatches of a slot. Other
    /// tensors stay. `None` without memory.
    pub(crate) fn bound(&self, program: &Program<P::Region>, policy: &P, tensor: Tensor) -> Option<Tensor> {
        let Some(index) = program.taken(tensor.buffer) else { return Some(tensor) };
        let visit = &program.visits[program.buffers[index].visit()];
        let stands_for_it = self.planned_visit(policy, visit.region, program.microbatches);
        let planned = &self.programs[&self.plan.microbatches];
        let (at, _) = planned.own(stands_for_it?, program.index_in_visit(index))?;
        let start = self.binding.as_ref()?.address(at)?;
        let address = start + (tensor.address - program.buffers[index].address);
        Some(Tensor { address, buffer: planned.buffers[at].buffer, ..tensor })
    }
}

/// Fails if a step does not fit a plan, which was made from the `planned` list.
fn accept<P: Policy>(
    program: &Program<P::Region>,
    plan: &Plan<P::Region>,
    planned: &Program<P::Region>,
    policy: &P,
) -> Result<()> {
    if let Some(slots) = &plan.slots {
        for (chunk, in_flight) in in_flight(program, policy) {
            let slots = slots.get(&chunk).copied().unwrap_or(0);
            if in_flight > slots {
                let slots = counted(slots, "slot");
                let problem = format!("{in_flight} microbatches are in flight at once, the plan has {slots}");
                let fix = "record every number of microbatches that will come before the first step";
                return Err(Error::usage(problem, fix));
            }
        }
        check_flights(program, slots, policy)?;
    }
    for (buffer, index) in program.taken_in_order() {
        let region = program.visits[buffer.visit()].region;
        let visit = plan.visit(&plan.key(policy, region, program.microbatches));
        let known = visit.and_then(|visit| plan.placement(planned, visit, index));
        if known.is_none_or(|(known, _)| known.bytes != buffer.bytes) {
            let name = program.own(buffer.visit(), index).map_or("", |(_, name)| name);
            let problem = format!("buffer `{name}` of {} bytes was not in the plan", buffer.bytes);
            let fix = "give each shape a mode of its own, or call CudaGraphManager::reset";
            return Err(Error::changed(region, problem, fix));
        }
    }
    Ok(())
}
