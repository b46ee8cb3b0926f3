//! A layout's prediction: whether it fits, and how long a step takes.

use std::rc::Rc;

use common::UserError;
use common::format::bytes;
use engine::step::Stage;
use parallel::Axis;

use crate::config::plan::RunPlan;
use crate::error::RunError;
use crate::predict::card::Card;
use crate::predict::network::Network;
use crate::predict::paper;
use crate::predict::simulate::simulate;
use crate::predict::step_graph::Phase;

/// Bytes of device memory of a rank, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// The driver and libraries, which no plan counts.
    pub libraries: usize,
}

impl Memory {
    pub(super) fn of(stage: &mut Stage, libraries: usize) -> Memory {
        let total = stage.device().allocated_bytes();
        let activations = stage.graphs().memory().iter().map(|area| area.bytes).sum();
        let (params, optimizer) = (stage.params(), stage.optimizer().state_bytes());
        let weights = params.weight_bytes() + params.master_bytes() + params.fp8_bytes();
        let gradients = params.grads.bytes();
        let rest = total.saturating_sub(activations + weights + gradients + optimizer);
        Memory { weights, gradients, optimizer, activations, rest, libraries }
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations + self.rest + self.libraries
    }
}

/// Whether a rank's memory fits a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does.
    Fits,
    /// It does not: so many bytes are missing.
    Lacks(usize),
}

/// What is predicted of a run.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// Memory of a rank of each pipeline stage.
    pub memory: Vec<Memory>,
    /// Whether the largest of them fits.
    pub fit: Fit,
    /// Seconds of a step.
    pub step: f64,
    /// Tokens a second over all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs a second over the data sheet's bf16 peak.
    pub mfu: f64,
    /// Days that all steps of the run take, without evaluations and checkpoints.
    pub days: f64,
    /// The share of a step in which a rank waits for other stages, or for nothing in particular: the mean over stages.
    pub idle: f64,
    /// The share in which a rank only transfers.
    pub exposed: f64,
    /// What each stage does when: start and end in seconds.
    pub spans: Vec<Vec<(f64, f64, Phase)>>,
}

/// A run's prediction on GPUs of this kind, `node` of them in each node.
///
/// # Errors
/// Settings that exclude each other.
pub fn forecast(plan: &RunPlan, card: &Card, node: usize) -> Result<Forecast, RunError> {
    let ranks = plan.parallel.grid.group(0, Axis::Pipeline);
    let network = Network { card: Rc::new(card.clone()), node };
    let (memory, graphs) = paper::steps(plan, &ranks, &network)?;
    let simulation = simulate(&graphs, card.overlap.transfer_share);
    let step = simulation.seconds;
    let tokens = plan.tokens_per_step() as f64;
    let world = plan.parallel.grid.ranks() as f64;
    let mean = |share: &dyn Fn(usize) -> f64| (0..ranks.len()).map(share).sum::<f64>() / ranks.len() as f64 / step;
    let times = &simulation.ranks;
    Ok(Forecast {
        fit: fit(memory.iter().map(Memory::total).max().unwrap_or(0), card),
        memory,
        step,
        tokens_per_second: tokens / step,
        mfu: tokens * plan.size.flops_per_token / step / world / (card.peak_bf16_tflops * 1e12),
        days: step * plan.steps as f64 / 86_400.0,
        idle: mean(&|rank| step - times[rank].computing - times[rank].only_transfers),
        exposed: mean(&|rank| times[rank].only_transfers),
        spans: simulation.ranks.into_iter().map(|times| times.spans).collect(),
    })
}

fn fit(needed: usize, card: &Card) -> Fit {
    match needed.checked_sub(card.room()) {
        None | Some(0) => Fit::Fits,
        Some(lacks) => Fit::Lacks(lacks),
    }
}

/// Fails unless a rank of each stage fits the GPU. Nothing is simulated.
///
/// # Errors
/// A stage that does not fit, with what it needs.
pub fn check_fits(plan: &RunPlan, card: &Card) -> Result<(), RunError> {
    for (stage, rank) in plan.parallel.grid.group(0, Axis::Pipeline).into_iter().enumerate() {
        let memory = paper::memory(plan, rank, card)?;
        if let Fit::Lacks(_) = fit(memory.total(), card) {
            return Err(too_large(stage, &memory, plan, card).into());
        }
    }
    Ok(())
}

fn too_large(stage: usize, memory: &Memory, plan: &RunPlan, card: &Card) -> UserError {
    let stages = plan.parallel.grid.size(Axis::Pipeline);
    let who = if stages > 1 { format!("a rank of stage {} of {stages}", stage + 1) } else { "a rank".into() };
    let Memory { weights, gradients, optimizer, activations, libraries, .. } = *memory;
    UserError::new(
        format!(
            "{who} needs {} of GPU memory ({} weights, {} gradients, {} optimizer, {} activations, {} libraries), {} \
             has {}",
            bytes(memory.total()),
            bytes(weights),
            bytes(gradients),
            bytes(optimizer),
            bytes(activations),
            bytes(libraries),
            card.name,
            bytes(card.room())
        ),
        "a rank's plan fits the GPU, with what the driver and libraries take",
        format!(
            "`trainer plan --ranks {} --gpu GPU -- FLAGS` lists layouts that fit; or set a smaller train.micro_batch_size",
            plan.parallel.grid.ranks()
        ),
    )
}
