//! The numbers of a run's first steps, on all ranks. Ranks are threads of this host.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use common::panic_text;
use device::{Device, HostOptions};
use engine::step::{BlockLoad, StepSettings};
use parallel::{Connections, Ranks, ThreadRank, ThreadWorld};
use trainer::checkpoint::Writers;
use trainer::config::RunConfig;
use trainer::config::plan::RunPlan;
use trainer::error::{RunError, file_error};
use trainer::process_group::ProcessGroup;
use trainer::run::set_up::{recorded_stage, step_settings};

use super::checkpoint::{loaded, save_in};
use super::samples::Samples;
use super::small::alone;
use super::values::{Before, Shard, kept, left_by_step};

/// Steps that are compared. In the third one weights have moved twice, and with graphs it is replayed.
pub(crate) const STEPS: usize = 3;

/// The smallest bucket of gradients, in bytes: so small that every rank has several.
const BUCKET_BYTES: usize = 4096;

/// How long a rank may work alone.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The numbers of a step on a rank.
#[derive(Clone, Debug)]
pub(super) struct StepNumbers {
    /// The loss, then the terms that training adds to the loss, by name.
    pub(super) losses: Vec<(&'static str, f64)>,
    pub(super) grad_norm: f32,
    pub(super) loads: Vec<BlockLoad>,
    /// Gradients of all parameters, then states, then updates.
    pub(super) shards: Vec<Shard>,
}

/// The numbers of a rank.
#[derive(Clone, Debug)]
pub(super) struct RankNumbers {
    pub(super) steps: Vec<StepNumbers>,
    /// What a checkpoint keeps of the rank after the last step.
    pub(super) kept: Vec<Shard>,
}

/// The numbers of every rank.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    pub(super) ranks: Vec<RankNumbers>,
    /// What one rank loads from the checkpoint that several ranks save after the last step; `None` of one rank.
    pub(super) loaded: Option<Vec<Shard>>,
}

/// Connects a rank with the others.
pub(super) type Connect = fn(&ThreadRank, &Connections) -> device::Result<Rc<Ranks>>;

/// The numbers of every rank.
///
/// # Errors
/// A configuration that breaks a rule; a step that fails; a checkpoint that cannot be saved, or does not load on one rank.
pub(super) fn numbers(config: &RunConfig, ranks: usize) -> Result<Numbers, RunError> {
    connected_numbers(config, ranks, ThreadRank::connect)
}

/// As [`numbers`], of ranks that are connected so.
///
/// # Errors
/// As [`numbers`].
pub(super) fn connected_numbers(config: &RunConfig, ranks: usize, connect: Connect) -> Result<Numbers, RunError> {
    RunPlan::new(config.clone(), ranks)?;
    let made = (ranks > 1).then(tempfile::tempdir).transpose();
    let folder = made.map_err(file_error("a temporary folder for a checkpoint".into()))?;
    let path = folder.as_ref().map(tempfile::TempDir::path);
    let results: Vec<Result<(RankNumbers, Option<PathBuf>), RunError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadWorld::ranks(ranks, TIMEOUT)
            .into_iter()
            .map(|rank| scope.spawn(move || on_rank(config, ranks, (&rank, connect), path)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|end| end.unwrap_or_else(|panic| Err(RunError::Panic(panic_text(&*panic))))).collect()
    });
    // The other ranks fail in a transfer if one does.
    let is_cause = |result: &Result<_, RunError>| result.as_ref().is_err_and(|error| !error.follows());
    let (causes, others): (Vec<_>, Vec<_>) = results.into_iter().partition(is_cause);
    let all: Result<Vec<_>, RunError> = causes.into_iter().chain(others).collect();
    let (ranks, saved): (Vec<RankNumbers>, Vec<Option<PathBuf>>) = all?.into_iter().unzip();
    let checkpoint = saved.into_iter().flatten().next();
    let loaded = checkpoint.map(|checkpoint| loaded(&alone(config), &checkpoint)).transpose()?;
    Ok(Numbers { ranks, loaded })
}

/// A device for one rank.
pub(super) fn host() -> device::Result<Device> {
    Device::host(HostOptions { threads: 1, check: true, dry: false })
}

/// The numbers of a rank, and the checkpoint that all save in `folder`.
fn on_rank(
    config: &RunConfig,
    ranks: usize,
    (rank, connect): (&ThreadRank, Connect),
    folder: Option<&Path>,
) -> Result<(RankNumbers, Option<PathBuf>), RunError> {
    let mut plan = RunPlan::new(config.clone(), ranks)?;
    plan.parallel.bucket_bytes = BUCKET_BYTES;
    // What reads memory after its last use reads no number.
    plan.graphs.poison = true;
    let device = host()?;
    let group = ProcessGroup::of(connect(rank, &plan.connections())?);
    let mut stage = recorded_stage(&plan, &device, &group, Some(config.train.seed))?;
    let samples = Samples::of(&plan);
    let mut before = Before::new(&stage)?;
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let first = (step * plan.batch.global) as u64;
        let share = plan.batch.share_of_global(first, plan.parallel.data_rank(rank.rank()));
        // Every other step has shorter samples, if the run has some.
        let length = plan.buckets.shorter().first().copied().filter(|_| step % 2 == 1);
        let counts = samples.counts(first, plan.batch.global, length);
        let settings = StepSettings { length, ..step_settings(&plan.optimizer, step, share, counts) };
        let batch = stage.needs_batch().then(|| samples.batch(share.first_sample, share.samples, length));
        let result = stage.train_step(settings, batch.as_ref())?.wait()?;
        let logps = result.of_pairs.into_iter().filter(|(name, _)| name.starts_with("logps"));
        steps.push(StepNumbers {
            losses: [("loss", result.loss)].into_iter().chain(result.added).chain(logps).collect(),
            grad_norm: result.grad_norm,
            loads: result.expert_loads,
            shards: left_by_step(&plan, &stage, &mut before)?,
        });
    }
    let kept = kept(&stage)?;
    let writers = Writers::new(&plan, &group);
    let saved = folder.map(|folder| save_in(folder, &mut stage, writers, rank)).transpose()?;
    Ok((RankNumbers { steps, kept }, saved))
}

#[cfg(test)]
mod tests {
    use trainer::config::ConfigSources;

    use super::*;
    use crate::verify::trials;
    use crate::verify::values::Values;

    /// The numbers of a small model in the layout of the given settings.
    fn of(settings: &str, ranks: usize) -> Vec<RankNumbers> {
        let sources = ConfigSources::of_pairs(settings).unwrap();
        let [trial] = trials(&sources.resolve(), ranks).unwrap().try_into().ok().unwrap();
        numbers(&trial.small.config, ranks).unwrap().ranks
    }

    #[test]
    fn the_first_gradients_that_the_momentum_of_muon_tells_are_those_that_adamw_leaves() {
        let layout = "model.layers=2 train.global_batch_size=8 parallel.tensor=2";
        let of_kind = |kind: &str| of(&format!("{layout} optimizer.kind={kind}"), 2);
        for (muon, adamw) in of_kind("muon").iter().zip(&of_kind("adamw")) {
            let of_step = |rank: &RankNumbers| {
                let gradients = rank.steps[0].shards.iter().filter(|shard| shard.values == Values::Gradient);
                let mut all: Vec<Shard> = gradients.cloned().collect();
                all.sort_by(|one, other| (&one.name, one.slab.start).cmp(&(&other.name, other.slab.start)));
                all
            };
            let (told, left) = (of_step(muon), of_step(adamw));
            assert!(told.len() == left.len() && told.len() > 20, "{} and {}", told.len(), left.len());
            for (told, left) in told.iter().zip(&left) {
                let largest = left.here.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
                let pairs = told.here.iter().zip(&left.here);
                let apart = pairs.map(|(told, left)| (told - left).abs()).fold(0.0, f32::max);
                assert!(told.name == left.name && apart <= 1e-5 * largest, "{}: {apart} of {largest}", left.name);
            }
        }
    }

    #[test]
    fn every_other_step_has_the_shorter_samples() {
        let of_lengths = |lengths: &str| {
            let settings = format!("model.layers=2 train.global_batch_size=8 data.sft=true {lengths}");
            let [rank]: [RankNumbers; 1] = of(&settings, 1).try_into().ok().unwrap();
            rank.steps.iter().map(|step| step.losses[0].1).collect::<Vec<f64>>()
        };
        let short = of_lengths("data.seq_length_buckets=[32,64] model.seq_length=64");
        let whole = of_lengths("model.seq_length=64");
        assert!(short[0] == whole[0] && short[1] != whole[1], "{short:?} and {whole:?}");
    }
}
