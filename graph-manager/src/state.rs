//! What a manager knows of one kind of step.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use common::format::counted;
use device::{Graph, Op, StreamId, Tensor};

use crate::error::{Error, Result};
use crate::keys::{CodeKey, GraphKey, SavedKey};
use crate::options::Mempool;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::recording::Recording;
use crate::slots::{check_flights, in_flight, slots};

/// The recordings, plan and graphs of one kind of step.
pub(crate) struct State<P: Policy> {
    /// By number of microbatches.
    pub(crate) recordings: BTreeMap<usize, Recording<P::Region>>,
    pub(crate) plan: Plan<P::Region>,
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
        recording: Recording<P::Region>,
        policy: &P,
        compute: StreamId,
    ) -> Result<State<P>> {
        let plan = Plan::new(mempool, &[&recording], policy, compute);
        plan.slots.as_ref().map_or(Ok(()), |slots| check_flights(&recording, slots, policy))?;
        Ok(State {
            recordings: BTreeMap::from([(recording.microbatches, recording)]),
            plan,
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
        recording: &Recording<P::Region>,
        visit: usize,
    ) -> GraphKey<P::Region, P::Variant> {
        let microbatches = recording.microbatches;
        GraphKey {
            code: self.code_key(policy, mode, recording.order[visit].region, microbatches),
            microbatches: recording.is_composite(visit).then_some(microbatches),
        }
    }

    /// Plans again where a step with another number of microbatches needs more slots. Even a step with fewer microbatches
    /// may: in an interleaved pipeline more are in flight if the last group is not whole.
    pub(crate) fn make_room(&mut self, recording: &Recording<P::Region>, policy: &P, compute: StreamId) {
        let all: Vec<_> = self.recordings.values().chain([recording]).collect();
        if self.plan.slots.as_ref().is_some_and(|known| *known != slots(&all, policy)) {
            self.plan = Plan::new(Mempool::PerMicrobatch, &all, policy, compute);
        }
    }

    /// Fails if a step with another number of microbatches does not fit the plan.
    pub(crate) fn accept(&self, recording: &Recording<P::Region>, policy: &P) -> Result<()> {
        if let Some(slots) = &self.plan.slots {
            for (chunk, in_flight) in in_flight(recording, policy) {
                let slots = slots.get(&chunk).copied().unwrap_or(0);
                if in_flight > slots {
                    let problem = format!(
                        "{in_flight} microbatches are in flight at once, the plan has {}",
                        counted(slots, "slot")
                    );
                    let fix = "record every number of microbatches that will come before the first step";
                    return Err(Error::usage(problem, fix));
                }
            }
            check_flights(recording, slots, policy)?;
        }
        for buffer in &recording.buffers {
            let region = recording.order[buffer.visit].region;
            let key = self.plan.key(policy, region, recording.microbatches);
            let planned = self.plan.placements.get(&(key, buffer.index));
            if planned.is_none_or(|planned| planned.bytes != buffer.bytes) {
                let problem = format!("buffer `{}` of {} bytes was not in the plan", buffer.name, buffer.bytes);
                let fix = "give each shape a mode of its own, or call CudaGraphManager::reset";
                return Err(Error::changed(region, problem, fix));
            }
        }
        Ok(())
    }
}
