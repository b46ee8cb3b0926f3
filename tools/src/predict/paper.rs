//! A rank of any run on paper: its stage is recorded on the dry host device, and its communicators transfer nothing.

use std::rc::Rc;

use device::cuda::PeerWindow;
use device::ops::{AttentionBackward, CollectiveKind};
use device::{Communicator, DType, Device, Error, HostOptions, Op, Request, Tensor};
use engine::regions::Mode;
use engine::step::Stage;
use parallel::Ranks;

use crate::predict::forecast::{Memory, graph_bytes};
use crate::predict::network::Network;
use crate::predict::step_graph::{Builder, Communicators, Node, Submitted};
use trainer::config::plan::RunPlan;
use trainer::error::RunError;
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::recorded_stage;

/// A group of ranks on paper.
#[derive(Debug)]
struct PaperGroup {
    name: String,
    rank: usize,
    members: Vec<usize>,
    /// Whether kernels make the group's transfers.
    kernels: bool,
}

impl Communicator for PaperGroup {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn start(&self, kind: CollectiveKind, _input: &Tensor, _output: &Tensor) -> device::Result<Box<dyn Request>> {
        Err(Error::operation(kind.name(), format!("the ranks of `{}` are on paper", self.name)))
    }

    fn members(&self) -> Vec<usize> {
        self.members.clone()
    }

    fn moves_rows(&self) -> bool {
        self.kernels
    }
}

/// A rank's view of all ranks of a plan, and the bytes that libraries and communicators take on the rank.
fn group(plan: &RunPlan, rank: usize, network: &Network) -> Result<(ProcessGroup, usize), RunError> {
    let (mut communicators, mut windows) = (0, 0);
    let mut connect = |name: &str, members: Vec<usize>| -> device::Result<Option<Rc<dyn Communicator>>> {
        let Some(own) = members.iter().position(|member| *member == rank).filter(|_| members.len() > 1) else {
            return Ok(None);
        };
        communicators += 1;
        let kernels = network.has_kernels(plan, name, &members);
        if kernels {
            windows += PeerWindow::bytes(members.len());
        }
        Ok(Some(Rc::new(PaperGroup { name: name.into(), rank: own, members, kernels })))
    };
    let group = ProcessGroup::of(Ranks::connect(&plan.connections(), rank, &mut connect)?);
    Ok((group, network.card.taken(communicators) + windows))
}

fn dry_device() -> Result<Device, RunError> {
    Ok(Device::host(HostOptions { threads: 1, check: false, dry: true })?)
}

/// The memory of a stage with recorded steps of so many microbatches, with the stage's graphs, and libraries that take so
/// many bytes without scratch.
fn expected(stage: &mut Stage, microbatches: usize, libraries: usize) -> Memory {
    let mut scratch = 0;
    stage.graphs().list(Mode::Train.into(), microbatches, |entry| {
        scratch = scratch.max(entry.op.as_ref().map_or(0, attention_scratch));
    });
    Memory { graphs: graph_bytes(stage), libraries: libraries + scratch, ..Memory::planned(stage) }
}

/// Bytes of scratch of an attention's backward by cuDNN: it adds up gradients of queries in f32, and has gradients of
/// keys and values for each head before they are summed over the heads of a group. Measured on an H200:
/// `bench/results/2026-11-30-four-h200.md`.
fn attention_scratch(op: &Op) -> usize {
    let Op::AttentionBackward(AttentionBackward { grad_output, heads, kv_heads, .. }) = op else { return 0 };
    // Our own kernels, which compute in f32, have none.
    if grad_output.dtype != DType::Bf16 {
        return 0;
    }
    let of_groups = if kv_heads < heads { 2 * grad_output.dtype.size() } else { 0 };
    grad_output.elements() * (DType::F32.size() + of_groups)
}

/// The memory that a rank needs.
///
/// # Errors
/// Settings that exclude each other.
pub(super) fn memory(plan: &RunPlan, rank: usize, network: &Network) -> Result<Memory, RunError> {
    let device = dry_device()?;
    let (group, taken) = group(plan, rank, network)?;
    let mut stage = recorded_stage(plan, &device, &group, None)?;
    Ok(expected(&mut stage, plan.batch.microbatches(), taken))
}

/// A rank's step of the global batch.
pub(super) struct RankStep {
    pub(super) memory: Memory,
    pub(super) nodes: Vec<Node>,
    pub(super) submitted: Submitted,
}

/// The memory of each of the given ranks, and the rank's work in a step of the global batch.
///
/// # Errors
/// Settings that exclude each other.
pub(super) fn steps(plan: &RunPlan, ranks: &[usize], network: &Network) -> Result<Vec<RankStep>, RunError> {
    // One recording: no evaluation, no steps of other sizes or lengths.
    let mut config = plan.config.clone();
    config.train.eval_interval = 0;
    config.train.early_stop_patience = 0;
    config.checkpoint.save_best = false;
    config.train.rampup_batch_size = Vec::new();
    config.precision.fp8_metrics_interval = 0;
    config.data.seq_length_buckets = Vec::new();
    let plan = Rc::new(RunPlan::new(config, plan.parallel.mesh.ranks())?);
    let mut steps = Vec::new();
    let mut communicators = Communicators::default();
    for &rank in ranks {
        let device = dry_device()?;
        let (group, taken) = group(&plan, rank, network)?;
        let mut stage = recorded_stage(&plan, &device, &group, None)?;
        let memory = expected(&mut stage, plan.batch.microbatches(), taken);
        let mut builder = Builder::new(plan.clone(), network.clone(), ranks.into(), communicators);
        let mode = if plan.frozen.are_all() { Mode::Evaluate } else { Mode::Train };
        for mode in stage.first_forwards().into_iter().chain([mode]) {
            builder.next_list();
            stage.graphs().list(mode.into(), plan.batch.microbatches(), |entry| builder.add(&entry));
        }
        let submitted = builder.submitted();
        let nodes;
        (nodes, communicators) = builder.take();
        steps.push(RankStep { memory, nodes, submitted });
    }
    Ok(steps)
}
