//! `trainer`, and `trainer bench`: from a request to the work on all ranks.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::UserError;
use common::terminal::{print, warn};
use data::Source;
use device::Device;
use launch::RankEnv;
use launch::watch::ranks_file::RANKS;
use tracing_subscriber::EnvFilter;

use super::bench::{self, BenchRequest};
use super::plan::check_named_gpu;
use super::profile::{self, ProfileRequest};
use crate::checkpoint::{KeptFile, refuse_other_formats, start_folder};
use crate::config::checks::require;
use crate::config::plan::RunPlan;
use crate::config::request::TrainRequest;
use crate::config::unused_settings;
use crate::config::{TensorTransfers, advice};
use crate::error::{RunError, file_error};
use crate::process_group::ProcessGroup;
use crate::report::logs;
use crate::report::reporter::Outcome;
use crate::run::accelerator::{Accelerator, Exactness};
use crate::run::consistency::shared_settings;
use crate::run::evaluate::EvaluationSet;
use crate::run::output_files::check_writable;
use crate::run::ranks::{Topology, on_all_ranks, refuse};
use crate::run::run_folder;
use crate::run::set_up::source_files;
use crate::run::source::{source, source_to_plan, validation_sets};

/// Trains; returns the exit code. A wrong request ends the process before it touches the device.
pub(super) fn train(request: &TrainRequest, env: &RankEnv) -> i32 {
    let prepared = prepare(request, false, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let Prepared { plan, source, sets, files, accelerator } = &prepared;
    start(request, (plan, accelerator), env, &[], |group, device| {
        let outcome = crate::run::train(plan, request, group, device, (source.clone(), sets, files))?;
        Ok(exit_code(outcome))
    })
}

/// Measures steps, and prints the result as JSON; returns the exit code. The process started at `started`.
pub(super) fn bench(request: &BenchRequest, env: &RankEnv, started: Instant) -> i32 {
    let BenchRequest { run, steps } = request;
    // A dry run measures nothing. It prints the plan.
    if run.dry_run {
        return train(run, env);
    }
    let prepared = prepare(run, true, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let Prepared { plan, accelerator, .. } = &prepared;
    start(run, (plan, accelerator), env, &[("bench", steps.to_string())], |group, device| {
        let result = bench::measure(plan, group, device, *steps, started)?;
        if group.rank == 0 {
            print(&serde_json::to_string_pretty(&result).unwrap_or_default())
                .map_err(file_error("standard output".into()))?;
            result.gains_nothing().into_iter().for_each(|notice| warn(&notice));
        }
        Ok(0)
    })
}

/// Profiles steps; returns the exit code.
pub(super) fn profile(request: &ProfileRequest, env: &RankEnv) -> i32 {
    if request.run.dry_run {
        return train(&request.run, env);
    }
    let prepared = prepare(&request.run, true, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let Prepared { plan, accelerator, .. } = &prepared;
    let command = [("profile", request.steps.to_string())];
    start(&request.run, (plan, accelerator), env, &command, |group, device| {
        profile::run(request, plan, group, device)?;
        Ok(0)
    })
}

/// A request that was checked.
struct Prepared {
    plan: RunPlan,
    source: Arc<dyn Source>,
    /// Further data to evaluate on.
    sets: Vec<EvaluationSet>,
    /// Of the Hugging Face model that a new run begins with. Only rank 0 has them.
    files: Vec<KeptFile>,
    accelerator: Accelerator,
}

/// Checks everything that can be checked before the ranks meet, prints the notices and starts logging.
fn prepare(request: &TrainRequest, is_bench: bool, env: &RankEnv) -> Result<Prepared, UserError> {
    // A benchmark generates its own batches.
    let open = if request.dry_run || is_bench { source_to_plan } else { source };
    let mut plan = RunPlan::new(request.config.clone(), env.world_size)?;
    if !is_bench {
        refuse_other_formats(&plan.config.checkpoint)?;
    }
    if let Some(gpu) = &request.gpu {
        check_named_gpu(gpu, &plan)?;
    }
    let writes_files = !request.dry_run && !is_bench;
    if writes_files && env.rank == 0 {
        run_folder::check(Path::new(&request.config.logging.dir))?;
    }
    let source = open(&plan)?;
    let sets = if request.dry_run || is_bench { Vec::new() } else { validation_sets(&plan, &*source)? };
    let begins_anew = start_folder(&plan.config.checkpoint).is_none();
    let files = if env.rank == 0 && begins_anew && !is_bench { source_files(&plan, &*source)? } else { Vec::new() };
    plan.graphs.poison = request.check_graphs;
    plan.graphs.check_replays = request.check_graphs;
    if is_bench {
        plan.graphs.warmup_steps = plan.graphs.warmup_steps.max(bench::WARM_UP);
    }
    let accelerator = Accelerator::choose(plan.config.train.device, env)?;
    check_verifiable(&plan, accelerator)?;
    if env.rank == 0 {
        let unused = unused_settings::notices(&plan, is_bench);
        let binding = launch::binding_notice(env);
        let advice = advice::notice(&plan, env);
        let notices = request.notices.iter().chain(&unused).chain(&binding).chain(&advice).map(String::as_str);
        notices
            .chain(source.notices().iter().map(String::as_str))
            .for_each(|notice| warn(&format!("notice: {notice}")));
    }
    let filter = log_filter(&request.log)?;
    let logging = &request.config.logging;
    if writes_files {
        check_writable(logging, request.graph_report.as_deref(), env.rank)?;
        plan.watch.file = Some(Path::new(&logging.dir).join(RANKS));
    }
    logs::start(filter, writes_files.then(|| Path::new(&logging.dir)), env.rank)?;
    Ok(Prepared { plan, source, sets, files, accelerator })
}

/// Fails if steps are to be verified whose bits differ from run to run.
fn check_verifiable(plan: &RunPlan, accelerator: Accelerator) -> Result<(), UserError> {
    let repeats = accelerator == Accelerator::Host || plan.config.train.deterministic;
    require(!plan.verifies() || repeats, || {
        UserError::new(
            format!("cuda_graph.verify = {} on a GPU", plan.config.cuda_graph.verify),
            "verified steps must give the same bits each time, which backward attention on a GPU does only with \
             train.deterministic",
            "add --deterministic, or leave --verify-cuda-graph out",
        )
    })
}

/// The log messages to show.
///
/// # Errors
/// What is no filter.
pub(super) fn log_filter(text: &str) -> Result<EnvFilter, UserError> {
    EnvFilter::try_new(text).map_err(|error| {
        let rule = "a filter is a level, or pairs of target=level";
        UserError::new(format!("--log {text}: {error}"), rule, "for example --log info")
    })
}

/// Brings all ranks together and does `work`, the same on all of them; returns the exit code. `command` has the settings of the
/// command line alone, names and values; they are the same on all ranks.
pub(super) fn start(
    request: &TrainRequest,
    (plan, accelerator): (&RunPlan, &Accelerator),
    env: &RankEnv,
    command: &[(&str, String)],
    work: impl FnOnce(&ProcessGroup, &Device) -> Result<i32, RunError>,
) -> i32 {
    let train = &plan.config.train;
    let open = |threads| {
        let exactness = Exactness::new(train.deterministic, plan.config.precision.compute);
        let device = accelerator.open(exactness, threads, request.check_graphs)?;
        device.set_dry(request.dry_run);
        Ok(device)
    };
    let parallel = &plan.parallel;
    let placement = parallel.schedule.placement();
    let overlaps = parallel.schedule.overlaps();
    let peers = plan.config.parallel.tensor_transfers == TensorTransfers::Auto;
    let topology = Topology { grid: parallel.grid, placement, ties_ends: parallel.shares_table, overlaps, peers };
    let every = [("dry-run", request.dry_run.to_string()), ("device", accelerator.kind().into())];
    let command = [command, &every[..]].concat();
    let settings = shared_settings(&plan.config, &command);
    on_all_ranks(env, topology, &settings, train.threads, &plan.watch, open, work)
}

/// The exit code of a run that came to its end.
fn exit_code(outcome: Option<Outcome>) -> i32 {
    if outcome.is_none_or(|outcome| outcome.finite) { 0 } else { 3 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;

    #[test]
    fn a_gpu_verifies_only_steps_that_repeat_their_bits() {
        let problem = |text: &str, accelerator| {
            let mut layers = Layers::default();
            for (key, value) in text.split_whitespace().map(|pair| pair.split_once('=').unwrap()) {
                layers.set(key, value, "test").unwrap();
            }
            let plan = RunPlan::new(layers.resolve(), 1).unwrap();
            check_verifiable(&plan, accelerator).err().map(|error| error.to_string())
        };
        let verified = "cuda_graph.enable=true cuda_graph.verify=100";
        let text = problem(verified, Accelerator::Cuda(0)).unwrap();
        assert!(
            text.contains("cuda_graph.verify = 100 on a GPU") && text.contains("Fix: add --deterministic"),
            "{text}"
        );
        assert_eq!(problem(verified, Accelerator::Host), None);
        assert_eq!(problem(&format!("{verified} train.deterministic=true"), Accelerator::Cuda(0)), None);
        assert_eq!(problem("cuda_graph.enable=true", Accelerator::Cuda(0)), None);
    }
}
