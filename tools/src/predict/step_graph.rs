//! A rank's step as a graph of priced operations, made from the step's list.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Move};
use device::{Op, StreamId};
use graph_manager::ListedEntry;
use parallel::Axis;

use crate::predict::network::Network;
use crate::predict::price::{Price, price};
use trainer::config::plan::RunPlan;

/// The purpose of a part of a step, as in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A forward.
    Forward,
    /// A backward.
    Backward,
    /// Weight gradients that a backward deferred.
    WeightGradients,
    /// The reduction of the last gradients, clip and update, and the beginning of a step.
    Update,
}

impl Purpose {
    /// The purpose of a region, by the region's name in words.
    fn of(scope: &str) -> Purpose {
        let words = || scope.split(' ');
        match words().find(|word| ["forward", "backward", "weights", "gradients"].contains(word)) {
            Some("backward" | "gradients") => Purpose::Backward,
            Some("weights") => Purpose::WeightGradients,
            Some(_) => Purpose::Forward,
            None if scope.starts_with("inputs") || scope.starts_with("outputs") => Purpose::Forward,
            None => Purpose::Update,
        }
    }
}

/// The work that a rank's host submits in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Submitted {
    /// Operations.
    pub(super) operations: usize,
    /// Graphs, and regions outside of graphs, without transfers by NCCL.
    pub(super) regions: usize,
    /// The regions with transfers of NCCL.
    pub(super) regions_with_nccl: usize,
}

/// An operation of a step.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) work: Work,
    pub(super) purpose: Purpose,
    /// The operations that this operation waits for.
    pub(super) after: Vec<u32>,
}

/// The work of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    /// Takes the GPU.
    Compute(Price),
    /// Takes a link.
    Transfer {
        seconds: f64,
        /// The transfer's number, if other simulated ranks take part.
        meeting: Option<Meeting>,
    },
    /// Takes the link to the host for so many seconds. A copy engine does it, so kernels beside it keep their speed.
    Copy { seconds: f64 },
}

/// A transfer that several simulated ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Meeting {
    /// The communicator's number among the communicators of all simulated ranks.
    pub(super) communicator: usize,
    /// The transfer's number on the communicator.
    pub(super) number: usize,
    /// The simulated ranks that take part.
    pub(super) ranks: usize,
}

/// The communicators of all simulated ranks, by name and members.
#[derive(Default)]
pub(super) struct Communicators(BTreeMap<(String, Vec<usize>), usize>);

impl Communicators {
    fn number(&mut self, transfer: &Collective) -> usize {
        let next = self.0.len();
        *self.0.entry((transfer.communicator.name().into(), transfer.communicator.members())).or_insert(next)
    }
}

/// Makes a rank's graph from the list of a step.
pub(super) struct Builder {
    plan: Rc<RunPlan>,
    network: Network,
    /// World ranks that are simulated, ascending.
    simulated: Rc<[usize]>,
    nodes: Vec<Node>,
    /// The nodes of the lists before the one under way.
    of_lists_before: usize,
    /// By list and graph, and by name of a region outside of graphs: whether NCCL transfers in it.
    regions: HashMap<(usize, Option<usize>, Rc<str>), bool>,
    /// By queue: its last operation.
    last: HashMap<StreamId, u32>,
    /// By communicator: its number, the transfers so far, its members, and how many of them are simulated.
    groups: HashMap<*const (), Group>,
    communicators: Communicators,
}

struct Group {
    number: usize,
    transfers: usize,
    members: Vec<usize>,
    simulated: usize,
    /// Whether kernels make the group's sums and gathers.
    kernels: bool,
}

impl Builder {
    /// For the simulated ranks of a plan. `communicators` are those of the ranks before.
    pub(super) fn new(
        plan: Rc<RunPlan>,
        network: Network,
        simulated: Rc<[usize]>,
        communicators: Communicators,
    ) -> Builder {
        Builder {
            plan,
            network,
            simulated,
            nodes: Vec::new(),
            of_lists_before: 0,
            regions: HashMap::new(),
            last: HashMap::new(),
            groups: HashMap::new(),
            communicators,
        }
    }

    /// The work that the host has submitted so far.
    pub(super) fn submitted(&self) -> Submitted {
        let regions_with_nccl = self.regions.values().filter(|nccl| **nccl).count();
        let regions = self.regions.len() - regions_with_nccl;
        Submitted { operations: self.nodes.len(), regions, regions_with_nccl }
    }

    /// The graph so far, and the communicators for the next rank.
    pub(super) fn take(&mut self) -> (Vec<Node>, Communicators) {
        (std::mem::take(&mut self.nodes), std::mem::take(&mut self.communicators))
    }

    /// The entries to come are of a list that runs behind the entries so far.
    pub(super) fn next_list(&mut self) {
        self.of_lists_before = self.nodes.len();
    }

    /// Adds the next entry of the list.
    pub(super) fn add(&mut self, entry: &ListedEntry) {
        let (work, nccl) = match &entry.op {
            Some(Op::Collective(transfer)) => self.transfer(transfer),
            Some(Op::Move(Move { input, .. })) => {
                let rate = self.network.card.host.copy_gb_per_s * 1e9;
                (Work::Copy { seconds: input.bytes() as f64 / rate }, false)
            }
            Some(op) => (Work::Compute(self.price(op)), false),
            // A call of the host passes beside the work.
            None => (Work::Copy { seconds: 0.0 }, false),
        };
        let region = if entry.graph.is_some() { "".into() } else { entry.region.clone() };
        *self.regions.entry((self.of_lists_before, entry.graph, region)).or_default() |= nccl;
        let node = |number: usize| (self.of_lists_before + number) as u32;
        let before = self.last.insert(entry.queue, node(entry.number));
        let after = before.into_iter().chain(entry.waits.iter().map(|on| node(*on))).collect();
        self.nodes.push(Node { work, purpose: Purpose::of(&entry.region), after });
    }

    fn price(&self, op: &Op) -> Price {
        let price = price(op, &self.network.card, self.plan.config.precision.compute.rounds_to_tf32());
        match op {
            Op::GroupedGemm(_)
            | Op::GatherRows(_)
            | Op::CombineRows(_)
            | Op::ExpertGlu(_)
            | Op::ExpertGluBackward(_) => Price { work: price.work * self.filled_rows(), ..price },
            _ => price,
        }
    }

    /// The share of the room for rows of experts that has rows, with balanced loads. There is room for the most rows
    /// that a rank can have, or for those of a budget.
    fn filled_rows(&self) -> f64 {
        let ranks = self.plan.parallel.mesh.size(Axis::Expert) as f64;
        1.0 / self.plan.model.row_budget().map_or(ranks, |budget| budget.min(ranks))
    }

    /// A transfer as work, and whether NCCL makes the transfer.
    fn transfer(&mut self, transfer: &Collective) -> (Work, bool) {
        let filled = if matches!(transfer.kind, CollectiveKind::Rows(_)) { self.filled_rows() } else { 1.0 };
        let key = Rc::as_ptr(&transfer.communicator).cast::<()>();
        let group = self.groups.entry(key).or_insert_with(|| {
            let members = transfer.communicator.members();
            let simulated = members.iter().filter(|member| self.simulated.contains(member)).count();
            let kernels = self.network.has_kernels(&self.plan, transfer.communicator.name(), &members);
            Group { number: self.communicators.number(transfer), transfers: 0, members, simulated, kernels }
        });
        let (communicator, number, ranks) = (group.number, group.transfers, group.simulated);
        group.transfers += 1;
        let meeting = (ranks > 1).then_some(Meeting { communicator, number, ranks });
        let nccl = !(group.kernels && transfer.suits_kernels());
        let (bytes, members) = (transfer.bytes() as f64 * filled, &group.members);
        let seconds = match nccl {
            true => self.network.by_nccl(transfer.kind, bytes, members),
            false => self.network.by_kernels(transfer.kind, bytes, members),
        };
        (Work::Transfer { seconds, meeting }, nccl)
    }
}
