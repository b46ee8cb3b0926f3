//! The numbers of a run's first steps, on all ranks. Ranks are threads of this host.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use common::panic_text;
use device::{Device, HostOptions, Tensor};
use engine::params::{Param, ParamSpec, Slab};
use engine::step::{BlockLoad, Stage};
use parallel::{ThreadRank, ThreadWorld};
use trainer::config::RunConfig;
use trainer::config::plan::RunPlan;
use trainer::error::RunError;
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::{recorded_stage, step_settings};

use super::samples::Samples;

/// Steps that are compared. In the third one weights have moved twice, and with graphs it is replayed.
pub(crate) const STEPS: usize = 3;

/// The smallest bucket of gradients, in bytes: so small that every rank has several.
const BUCKET_BYTES: usize = 4096;

/// How long a rank may work alone.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Values of a parameter. A fault shows first in the one that comes first here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Values {
    /// The gradient, summed over all ranks.
    Gradient,
    /// A state of the optimizer.
    State(&'static str),
    /// The change of its weights in the step.
    Update,
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Gradient => f.write_str("gradient"),
            Values::State(name) => write!(f, "optimizer state `{name}`"),
            Values::Update => f.write_str("update"),
        }
    }
}

/// A part of a parameter's values that a rank has.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) values: Values,
    /// The parameter.
    pub(super) name: String,
    /// The sizes of the whole parameter.
    pub(super) whole: Vec<usize>,
    /// The place in the whole parameter.
    pub(super) slab: Slab,
    pub(super) here: Vec<f32>,
    /// The largest weight in it, for updates: they are rounded as it is.
    pub(super) largest_weight: f32,
}

/// The numbers of a step on a rank.
#[derive(Clone, Debug)]
pub(super) struct StepNumbers {
    /// The loss, then the terms that training adds to it, by name.
    pub(super) losses: Vec<(&'static str, f64)>,
    pub(super) grad_norm: f32,
    pub(super) loads: Vec<BlockLoad>,
    /// Gradients of all parameters, then states, then updates.
    pub(super) parts: Vec<Part>,
}

/// The numbers of a rank, step by step.
pub(super) type RankNumbers = Vec<StepNumbers>;

/// The numbers of every rank.
///
/// # Errors
/// A configuration that breaks a rule; a step that fails.
pub(super) fn numbers(config: &RunConfig, ranks: usize) -> Result<Vec<RankNumbers>, RunError> {
    RunPlan::new(config.clone(), ranks)?;
    let results: Vec<Result<RankNumbers, RunError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadWorld::ranks(ranks, TIMEOUT)
            .into_iter()
            .map(|rank| scope.spawn(move || on_rank(config, ranks, &rank)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|end| end.unwrap_or_else(|panic| Err(RunError::Panic(panic_text(&*panic))))).collect()
    });
    // The other ranks fail in a transfer if one does.
    let is_cause = |result: &Result<RankNumbers, RunError>| result.as_ref().is_err_and(|error| !error.follows());
    let (causes, others): (Vec<_>, Vec<_>) = results.into_iter().partition(is_cause);
    causes.into_iter().chain(others).collect()
}

fn on_rank(config: &RunConfig, ranks: usize, rank: &ThreadRank) -> Result<RankNumbers, RunError> {
    let mut plan = RunPlan::new(config.clone(), ranks)?;
    plan.parallel.bucket_bytes = BUCKET_BYTES;
    let device = Device::host(HostOptions { threads: 1, check: true, dry: false })?;
    let group = ProcessGroup::of(rank.connect(&plan.connections())?);
    let mut stage = recorded_stage(&plan, &device, &group, Some(config.train.seed))?;
    let samples = Samples::of(&plan);
    let mut weights = weights(&stage)?;
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let first = (step * plan.batch.global) as u64;
        let share = plan.batch.share_of_global(first, plan.parallel.data_rank(rank.rank()));
        let settings = step_settings(&plan.optimizer, step, share, samples.counts(first, plan.batch.global));
        let batch = stage.needs_batch().then(|| samples.batch(share.first_sample, share.samples));
        let result = stage.train_step(settings, batch.as_ref())?.wait()?;
        steps.push(StepNumbers {
            losses: [("loss", result.loss)].into_iter().chain(result.added).collect(),
            grad_norm: result.grad_norm,
            loads: result.expert_loads,
            parts: parts(&plan, &stage, &mut weights)?,
        });
    }
    Ok(steps)
}

/// The weights that this rank updates, by parameter.
fn weights(stage: &Stage) -> Result<HashMap<String, Vec<f32>>, RunError> {
    let owned = stage.params().iter().filter(|(_, param)| param.owned.elements > 0);
    owned.map(|(spec, param)| Ok((spec.name.clone(), stage.device().download(&param.master)?))).collect()
}

/// What a step left on this rank. `before` are the weights before it, and then those after it.
fn parts(plan: &RunPlan, stage: &Stage, before: &mut HashMap<String, Vec<f32>>) -> Result<Vec<Part>, RunError> {
    let after = weights(stage)?;
    let mut parts = Vec::new();
    // Muon writes directions over the gradients of whole buckets. Its momentum and AdamW's first moment show gradients.
    let overwrites = plan.optimizer.groups.iter().any(|group| group.rule.overwrites_gradients());
    for (index, (spec, param)) in stage.params().iter().enumerate() {
        let Some(new) = after.get(&spec.name) else { continue };
        let read = |tensor: &Tensor| stage.device().download::<f32>(tensor);
        if let Some(gradient) = param.owned_grad().filter(|_| !overwrites) {
            parts.extend(parts_of(Values::Gradient, (spec, param), &read(&gradient)?));
        }
        for (name, state) in stage.optimizer().state(index) {
            parts.extend(parts_of(Values::State(name), (spec, param), &read(state)?));
        }
        let old = before.get(&spec.name).map_or(&[][..], Vec::as_slice);
        let update: Vec<f32> = new.iter().zip(old).map(|(new, old)| new - old).collect();
        let largest_weight = new.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        let updates = parts_of(Values::Update, (spec, param), &update).into_iter();
        parts.extend(updates.map(|part| Part { largest_weight, ..part }));
    }
    parts.sort_by_key(|part| part.values);
    *before = after;
    Ok(parts)
}

/// The parts that the elements make up that a rank updates.
fn parts_of(values: Values, (spec, param): (&ParamSpec, &Param), owned: &[f32]) -> Vec<Part> {
    let range = param.owned.range();
    let slabs = spec.slabs.iter().flat_map(|slab| slab.within(range.clone()));
    let part = |slab: Slab| Part {
        values,
        name: spec.name.clone(),
        whole: spec.whole.clone(),
        here: owned[slab.start - range.start..][..slab.elements()].to_vec(),
        slab,
        largest_weight: 0.0,
    };
    slabs.map(part).collect()
}
