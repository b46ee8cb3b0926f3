//! A layout's prediction: whether it fits, and how long a step takes.

use device::Home;
use std::rc::Rc;

use common::UserError;
use common::format::bytes;
use engine::graph_options::{GraphOptions, Scope};
use engine::regions::Mode;
use engine::step::Stage;
use parallel::Axis;
use serde::{Deserialize, Serialize};

use crate::predict::card::Card;
use crate::predict::network::Network;
use crate::predict::paper;
use crate::predict::simulate::{RankTimes, Simulation, simulate};
use crate::predict::step_graph::{Purpose, Submitted};
use trainer::config::plan::{RunPlan, StateOnHost};
use trainer::error::RunError;
use trainer::run::state_on_host::least_share;

/// Bytes of a rank's device memory, by content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Memory {
    /// Weights in the types that products read, and master weights.
    pub weights: usize,
    /// Gradients.
    pub gradients: usize,
    /// Moments.
    pub optimizer: usize,
    /// Activations and scratch.
    pub activations: usize,
    /// Samples and numbers.
    pub rest: usize,
    /// What the driver takes for graphs. No plan of memory counts that, nor libraries.
    #[serde(default)] // Older profiles do not have it.
    pub graphs: usize,
    /// The driver and libraries.
    pub libraries: usize,
    /// Of the host, page-locked. Not a part of the total.
    #[serde(default)] // Older predictions have none.
    pub on_host: usize,
}

impl Memory {
    /// The memory that a stage's plan has allocated: no graphs and no libraries.
    pub(crate) fn planned(stage: &mut Stage) -> Memory {
        let total = stage.device().allocated_bytes();
        let activations = stage.graphs().memory().iter().map(|area| area.bytes).sum();
        let params = stage.params();
        let masters = params.master_bytes_in(Home::Device);
        let optimizer = stage.optimizer().state_bytes_in(Home::Device);
        let weights = params.weight_bytes() + masters + params.fp8_bytes();
        let gradients = params.grads.bytes();
        let rest = total.saturating_sub(activations + weights + gradients + optimizer);
        let on_host = stage.device().bytes_on_host();
        Memory { weights, gradients, optimizer, activations, rest, on_host, ..Memory::default() }
    }

    /// All of the device.
    pub fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.rest + self.graphs + self.libraries
    }
}

/// Bytes that the driver takes for an operation in a graph, measured on an H200:
/// `bench/results/2026-11-27-graphs-on-an-h200.md`.
const BYTES_OF_A_NODE: usize = 2621;

/// Bytes that the driver will take for the graphs of a stage's recorded steps.
pub(super) fn graph_bytes(stage: &mut Stage) -> usize {
    let modes = [Mode::Train, Mode::Evaluate, Mode::Measure].into_iter().chain(stage.first_forwards());
    BYTES_OF_A_NODE * modes.map(|mode| stage.graphs().expected_nodes(mode.into())).sum::<usize>()
}

/// Whether a rank's memory fits a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The run fits, and leaves [`Card::headroom`].
    Fits,
    /// The run fits, and leaves so many bytes, fewer than that.
    Tightly(usize),
    /// The run does not fit: so many bytes are missing.
    Lacks(usize),
}

/// The predicted memory, time and speed of a run.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Memory of a rank of each pipeline stage.
    pub memory: Vec<Memory>,
    /// Whether the largest memory fits.
    pub fit: Fit,
    /// Seconds of a step.
    pub step: f64,
    /// Tokens a second over all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs a second over the data sheet's bf16 peak.
    pub mfu: f64,
    /// Days that all steps of the run take, without evaluations and checkpoints.
    pub days: f64,
    /// The share of a step that a rank waits for other stages, or for nothing in particular: the mean over stages.
    pub idle: f64,
    /// The share of a step that a rank only transfers.
    pub exposed: f64,
    /// The work of each stage over time: start and end in seconds. Of a long step only the first microbatches.
    pub spans: Vec<Vec<(f64, f64, Purpose)>>,
}

/// The plan with the least share of the optimizer's state on the host that fits the GPU and leaves [`Card::headroom`], if
/// the share is as needed.
///
/// # Errors
/// Settings that exclude each other.
pub fn with_state_as_needed(plan: &RunPlan, card: &Card, node: usize) -> Result<RunPlan, RunError> {
    if plan.parallel.state_on_host != StateOnHost::AsNeeded {
        return Ok(plan.clone());
    }
    let network = Network { card: Rc::new(card.clone()), node };
    // More microbatches take no more memory.
    let [_, some] = enough_microbatches(plan);
    let shorter = (plan.batch.microbatches() > some).then(|| with_microbatches(plan, some)).transpose()?;
    let share = least_share(card.room() - card.headroom(), |share| {
        let plan = shorter.as_ref().unwrap_or(plan).with_state_on_host(share);
        let stages = plan.parallel.mesh.members_along(0, Axis::Pipeline);
        let needs = |rank| Ok::<_, RunError>(paper::memory(&plan, rank, &network)?.total());
        stages.into_iter().try_fold(0, |most, rank| Ok(needs(rank)?.max(most)))
    })?;
    Ok(plan.with_state_on_host(share))
}

/// A run's prediction on GPUs of this kind, `node` GPUs in each node. A share of the state on the host that is as needed
/// counts as none.
///
/// # Errors
/// Settings that exclude each other.
pub fn forecast(plan: &RunPlan, card: &Card, node: usize) -> Result<Forecast, RunError> {
    let microbatches = plan.batch.microbatches();
    let [fewer, some] = enough_microbatches(plan);
    if microbatches <= some {
        let (memory, simulation) = simulated(plan, card, node)?;
        return Ok(result(plan, card, memory, simulation));
    }
    // Once the pipeline is full, each microbatch takes as long as the one before.
    let (_, short) = simulated(&with_microbatches(plan, fewer)?, card, node)?;
    let (memory, mut long) = simulated(&with_microbatches(plan, some)?, card, node)?;
    let more = (microbatches - some) as f64 / (some - fewer) as f64;
    let extended = |short: f64, long: f64| long + (long - short) * more;
    long.seconds = extended(short.seconds, long.seconds);
    for (long, short) in long.ranks.iter_mut().zip(&short.ranks) {
        long.computing = extended(short.computing, long.computing);
        long.only_transfers = extended(short.only_transfers, long.only_transfers);
    }
    Ok(result(plan, card, memory, long))
}

/// Two numbers of microbatches, both large enough for a pipeline to fill, work and drain.
fn enough_microbatches(plan: &RunPlan) -> [usize; 2] {
    let stages = plan.parallel.mesh.size(Axis::Pipeline);
    let schedule = plan.parallel.schedule;
    let group = schedule.group().unwrap_or(stages);
    // If forwards overlap with backwards, the first stage runs further ahead: by 2 P - 1 forwards in 1F1B.
    let ahead = if schedule.overlaps() { 2 * stages } else { 0 };
    let fewer = group.max(8).max(ahead).next_multiple_of(group);
    [fewer, 2 * fewer]
}

/// The same run with so many microbatches in a step.
fn with_microbatches(plan: &RunPlan, microbatches: usize) -> Result<RunPlan, UserError> {
    let (mut config, mesh) = (plan.config.clone(), plan.parallel.mesh);
    config.train.global_batch_size = microbatches * plan.batch.micro * mesh.size(Axis::Data);
    config.train.rampup_batch_size = Vec::new();
    RunPlan::new(config, mesh.ranks())
}

fn simulated(plan: &RunPlan, card: &Card, node: usize) -> Result<(Vec<Memory>, Simulation), RunError> {
    let ranks = plan.parallel.mesh.members_along(0, Axis::Pipeline);
    let network = Network { card: Rc::new(card.clone()), node };
    let steps = paper::steps(plan, &ranks, &network)?;
    let host = steps.iter().map(|step| host_seconds(&plan.graphs, step.submitted, card)).fold(0.0, f64::max);
    let (memory, graphs): (_, Vec<_>) = steps.into_iter().map(|step| (step.memory, step.nodes)).unzip();
    let mut simulation = simulate(&graphs, card.overlap.transfer_share);
    // The host submits a step while the GPU runs the one before. The slower of the two sets the time.
    simulation.seconds = simulation.seconds.max(host);
    Ok((memory, simulation))
}

/// Seconds that a rank's host is busy with a step.
fn host_seconds(graphs: &GraphOptions, submitted: Submitted, card: &Card) -> f64 {
    let Submitted { operations, regions, regions_with_nccl } = submitted;
    let microseconds = match (graphs.enable, graphs.scope) {
        (false, _) => operations as f64 * card.host.operation_us,
        (true, Scope::PerLayer | Scope::PerChunk) => {
            let with_transfers = regions_with_nccl as f64 * card.host.launch_with_transfers_us;
            regions as f64 * card.host.launch_us + with_transfers
        }
        (true, Scope::FullIteration) => card.host.launch_with_transfers_us,
    };
    microseconds / 1e6
}

fn result(plan: &RunPlan, card: &Card, memory: Vec<Memory>, simulation: Simulation) -> Forecast {
    let (step, times) = (simulation.seconds, &simulation.ranks);
    let (tokens, world) = (plan.tokens_per_step() as f64, plan.parallel.mesh.ranks() as f64);
    let mean = |seconds: &dyn Fn(&RankTimes) -> f64| times.iter().map(seconds).sum::<f64>() / times.len() as f64 / step;
    let idle = mean(&|rank| step - rank.computing - rank.only_transfers).max(0.0);
    Forecast {
        fit: fit(memory.iter().map(Memory::total).max().unwrap_or(0), card),
        memory,
        step,
        tokens_per_second: tokens / step,
        mfu: tokens * plan.size.flops_per_token / step / world / (card.peak_bf16_tflops * 1e12),
        days: step * plan.steps as f64 / 86_400.0,
        idle,
        exposed: mean(&|rank| rank.only_transfers),
        spans: simulation.ranks.into_iter().map(|times| times.spans).collect(),
    }
}

fn fit(needed: usize, card: &Card) -> Fit {
    match card.room().checked_sub(needed) {
        None => Fit::Lacks(needed - card.room()),
        Some(left) if left < card.headroom() => Fit::Tightly(left),
        Some(_) => Fit::Fits,
    }
}

/// The plan, with as much of the optimizer's state on the host as is needed. Fails unless a rank of each stage fits the GPU.
/// Nothing is simulated.
///
/// # Errors
/// A stage that does not fit, with its need.
pub fn fitting(plan: &RunPlan, card: &Card) -> Result<RunPlan, RunError> {
    // Windows are counted as if all ranks were in one node. They can take no more than that.
    let network = Network { card: Rc::new(card.clone()), node: usize::MAX };
    let plan = &with_state_as_needed(plan, card, network.node)?;
    for (stage, rank) in plan.parallel.mesh.members_along(0, Axis::Pipeline).into_iter().enumerate() {
        let memory = paper::memory(plan, rank, &network)?;
        if let Fit::Lacks(_) = fit(memory.total(), card) {
            return Err(too_large(stage, &memory, plan, card).into());
        }
    }
    Ok(plan.clone())
}

fn too_large(stage: usize, memory: &Memory, plan: &RunPlan, card: &Card) -> UserError {
    let stages = plan.parallel.mesh.size(Axis::Pipeline);
    let who = if stages > 1 { format!("a rank of stage {stage} of {stages}") } else { "a rank".into() };
    let Memory { weights, gradients, optimizer, activations, graphs, libraries, .. } = *memory;
    UserError::new(
        format!(
            "{who} needs {} of GPU memory ({} weights, {} gradients, {} optimizer, {} activations, {} graphs, {} libraries), {} \
             has {}",
            bytes(memory.total()),
            bytes(weights),
            bytes(gradients),
            bytes(optimizer),
            bytes(activations),
            bytes(graphs),
            bytes(libraries),
            card.name,
            bytes(card.room())
        ),
        "a rank's plan fits the GPU, with what the driver and libraries take",
        format!(
            "`trainer plan --ranks {} --gpu GPU -- FLAGS` lists layouts that fit; or set a smaller train.micro_batch_size",
            plan.parallel.mesh.ranks()
        ),
    )
}

#[cfg(test)]
mod tests {
    use device::cuda::PeerWindow;

    use super::*;
    use trainer::config::ConfigSources;

    /// GPT-2 124M in microbatches of one sample, with the given settings.
    fn plan(ranks: usize, settings: &[(&str, &str)]) -> RunPlan {
        let mut sources = ConfigSources::default();
        let always = [("model.preset", "gpt2-124m"), ("train.micro_batch_size", "1")];
        always.iter().chain(settings).for_each(|(key, value)| sources.set(key, value, "test").unwrap());
        RunPlan::new(sources.resolve(), ranks).unwrap()
    }

    #[test]
    fn a_step_is_as_long_as_its_host_needs_to_submit_it() {
        let card = Card::named("h200").unwrap();
        let [off, on] = ["false", "true"].map(|graphs| {
            let settings = [("precision.compute", "bf16"), ("model.seq_length", "256"), ("cuda_graph.enable", graphs)];
            let (_, simulation) = simulated(&plan(1, &settings), &card, 8).unwrap();
            simulation.seconds
        });
        // 16 microbatches of 256 tokens: 4,000 operations of 13 us, for a GPU that is done earlier.
        assert!(off > 1.5 * on, "{off} {on}");
        let submitted = Submitted { operations: 1000, regions: 50, regions_with_nccl: 10 };
        let graphs = |enable, scope| GraphOptions { enable, scope, ..GraphOptions::default() };
        let seconds = |enable, scope| host_seconds(&graphs(enable, scope), submitted, &card) * 1e6;
        let whole =
            [(false, Scope::PerLayer, 13_000.0), (true, Scope::PerLayer, 980.0), (true, Scope::FullIteration, 68.0)];
        whole.iter().for_each(|(enable, scope, expected)| assert!((seconds(*enable, *scope) - expected).abs() < 1e-6));
    }

    #[test]
    fn ranks_that_share_layers_in_one_node_transfer_by_kernels_which_is_faster_and_takes_windows() {
        let card = Card::named("h100-80").unwrap();
        let predicted = |transfers: &str, node: usize| {
            let settings = [
                ("model.layers", "2"),
                ("precision.compute", "bf16"),
                ("cuda_graph.enable", "true"),
                ("parallel.tensor", "2"),
                ("parallel.tensor_transfers", transfers),
            ];
            let (memory, simulation) = simulated(&plan(2, &settings), &card, node).unwrap();
            (simulation.seconds, memory[0].total())
        };
        let [by_nccl, by_kernels] = ["nccl", "auto"].map(|transfers| predicted(transfers, 8));
        assert!(by_kernels.0 < by_nccl.0, "{by_kernels:?} {by_nccl:?}");
        assert_eq!(by_kernels.1, by_nccl.1 + PeerWindow::bytes(2));
        assert_eq!(predicted("auto", 1), predicted("nccl", 1));
    }

    #[test]
    fn a_long_step_is_extended_from_shorter_ones() {
        let card = Card::named("h200").unwrap();
        let overlap = [("cuda_graph.enable", "true"), ("cuda_graph.overlap_microbatches", "true")];
        let chunks = ("parallel.virtual_pipeline", "2");
        for (ranks, settings) in [
            (2, &[][..]),
            (2, &[("parallel.pipeline_schedule", "zero_bubble")]),
            (2, &[chunks]),
            (2, &overlap),
            (2, &[overlap[0], overlap[1], chunks]),
            (8, &[overlap[0], overlap[1], ("model.layers", "8")]),
        ] {
            let stages = ranks.to_string();
            let stages = [("train.global_batch_size", "48"), ("parallel.pipeline", stages.as_str())];
            let plan = plan(ranks, &[&stages, settings].concat());
            let (memory, whole) = simulated(&plan, &card, 8).unwrap();
            let extended = forecast(&plan, &card, 8).unwrap();
            assert!((extended.step / whole.seconds - 1.0).abs() < 0.005, "{} {}", extended.step, whole.seconds);
            let [shown, known] =
                [&extended.memory, &memory].map(|all| all.iter().map(Memory::total).max().unwrap() as f64);
            assert!((shown / known - 1.0).abs() < 0.01, "{shown} {known}");
        }
    }
}
