//! `trainer`, and `trainer bench`: from a request to the work on all ranks.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::terminal::{print, warn};
use common::{Mistakes, UserError};
use data::Source;
use device::Device;
use launch::RankEnv;
use launch::watch::ranks_file::RANKS;
use tracing_subscriber::EnvFilter;

use super::bench::{self, BenchRequest};
use super::plan::fitting_named_gpu;
use super::profile::{self, ProfileRequest};
use trainer::checkpoint::{KeptFile, missing_checkpoint, refuse_other_formats, start_folder};
use trainer::config::checks::require;
use trainer::config::plan::{RunPlan, plan_in_steps, suits_gpus};
use trainer::config::request::TrainRequest;
use trainer::config::{ModelKind, RunConfig, advice, unused_settings};
use trainer::error::{RunError, file_error};
use trainer::process_group::ProcessGroup;
use trainer::report::logs;
use trainer::report::reporter::Outcome;
use trainer::run::accelerator::{Accelerator, Exactness};
use trainer::run::consistency::shared_settings;
use trainer::run::evaluate::EvaluationSet;
use trainer::run::ranks::{Joined, on_all_ranks, refuse};
use trainer::run::run_folder;
use trainer::run::samples::Prompts;
use trainer::run::set_up::{check_start, source_files};
use trainer::run::source::{source, source_to_plan, validation_sets};
use trainer::told::tell;

/// Trains; returns the exit code. A wrong request ends the process before it touches the device.
pub(super) fn train(request: &TrainRequest, env: &RankEnv) -> i32 {
    let prepared = prepare(request, false, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let Prepared { plan, source, sets, files, accelerator } = &prepared;
    start(request, (plan, accelerator), env, &[], |group, device| {
        let outcome = trainer::run::train(plan, request, group, device, (source.clone(), sets, files))?;
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
        if group.rank() == 0 {
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
pub(super) struct Prepared {
    plan: RunPlan,
    source: Arc<dyn Source>,
    /// Further data to evaluate on.
    sets: Vec<EvaluationSet>,
    /// Of the Hugging Face model that a new run begins with. Only rank 0 has them.
    files: Vec<KeptFile>,
    accelerator: Accelerator,
}

/// Checks everything that can be checked before the ranks meet, and writes nothing. What is wrong is added to `mistakes`; then
/// there is no result.
pub(super) fn check(
    request: &TrainRequest,
    is_bench: bool,
    env: &RankEnv,
    mistakes: &mut Mistakes,
) -> Option<Prepared> {
    let config = &request.config;
    let mut plan = RunPlan::check(config.clone(), env.world_size, mistakes);
    if !is_bench {
        mistakes.keep(refuse_other_formats(&config.checkpoint));
    }
    if let (Some(gpu), Some(given)) = (&request.gpu, &plan)
        && let Some(fitting) = mistakes.keep(fitting_named_gpu(gpu, given))
    {
        plan = Some(fitting);
    }
    let writes_files = !request.dry_run && !is_bench;
    if writes_files && env.rank == 0 {
        mistakes.keep(run_folder::check(Path::new(&config.logging.dir)));
    }
    let all_there = !writes_files || check_files(config, env.rank, mistakes);
    let readable = plan.as_ref().filter(|_| all_there);
    let opened = readable.and_then(|plan| open_data(plan, writes_files, is_bench, env, mistakes));
    let accelerator = mistakes.keep(Accelerator::choose(config.train.device, env));
    if !is_bench {
        mistakes.keep(check_one_machine(config, env));
    }
    if let Some((plan, accelerator)) = plan.as_ref().zip(accelerator) {
        mistakes.keep(check_verifiable(plan, accelerator));
        if accelerator != Accelerator::Host {
            mistakes.keep(suits_gpus(&plan.model));
        }
    }
    // A folder that cannot be read is a mistake already.
    if let Some(plan) = plan.as_ref().filter(|_| env.rank == 0 && mistakes.is_empty()) {
        mistakes.keep(check_start(&plan.config, &plan.model));
    }
    mistakes.keep(log_filter(&request.log));
    let (source, sets, files) = opened?;
    let (plan, accelerator) = plan.zip(accelerator)?;
    let plan = mistakes.keep(plan_in_steps(plan, &*source))?;
    mistakes.is_empty().then_some(Prepared { plan, source, sets, files, accelerator })
}

/// Whether all files that this rank of a training run reads are there. Each that is not is added to `mistakes`. Only rank 0
/// looks for checkpoints.
pub(super) fn check_files(config: &RunConfig, rank: usize, mistakes: &mut Mistakes) -> bool {
    let of_data = if config.model.kind == ModelKind::Mlp { Vec::new() } else { data::missing_files(&config.data) };
    let checkpoint = missing_checkpoint(&config.checkpoint).filter(|_| rank == 0);
    let missing: Vec<UserError> = of_data.into_iter().chain(checkpoint).collect();
    let all_there = missing.is_empty();
    missing.into_iter().for_each(|error| mistakes.add(error));
    all_there
}

/// The data of a run, further data sets, and the files that a Hugging Face model brings.
type Opened = (Arc<dyn Source>, Vec<EvaluationSet>, Vec<KeptFile>);

/// Opens the data of a run.
fn open_data(plan: &RunPlan, trains: bool, is_bench: bool, env: &RankEnv, mistakes: &mut Mistakes) -> Option<Opened> {
    // A benchmark generates its own batches.
    let open = if trains { source } else { source_to_plan };
    let source = mistakes.keep(open(plan))?;
    let sets = if trains { mistakes.keep(validation_sets(plan, &*source))? } else { Vec::new() };
    if trains && env.rank == 0 {
        mistakes.keep(Prompts::open(plan, &*source))?;
    }
    let begins_anew = start_folder(&plan.config.checkpoint).is_none();
    // A folder that cannot be read is a mistake already.
    let has_files = env.rank == 0 && begins_anew && !is_bench && mistakes.is_empty();
    let files = if has_files { mistakes.keep(source_files(plan, &*source))? } else { Vec::new() };
    Some((source, sets, files))
}

/// Checks everything that can be checked before the ranks meet, prints the notices and starts logging.
fn prepare(request: &TrainRequest, is_bench: bool, env: &RankEnv) -> Result<Prepared, UserError> {
    let mut mistakes = Mistakes::default();
    let prepared = check(request, is_bench, env, &mut mistakes);
    mistakes.end()?;
    let Some(Prepared { mut plan, source, sets, files, accelerator }) = prepared else {
        unreachable!("a run is prepared, or there is a mistake")
    };
    plan.graphs.poison = request.check_graphs;
    plan.graphs.check_replays = request.check_graphs;
    if is_bench {
        plan.graphs.warmup_steps = plan.graphs.warmup_steps.max(bench::WARM_UP);
    }
    if env.rank == 0 {
        let unused = unused_settings::notices(&plan, is_bench);
        let binding = launch::binding_notice(env);
        let fine_tuning = advice::fine_tuning(&plan, &request.given).filter(|_| !is_bench);
        let advice: Vec<String> = advice::notices(&plan, env).chain(fine_tuning).collect();
        let verifiable = (request.dry_run && env.world_size > 1).then(|| {
            let ranks = env.world_size;
            format!(
                "`trainer verify layout --ranks {ranks} -- FLAGS` compares this layout's numbers with those of one rank"
            )
        });
        let all = request.notices.iter().chain(&unused).chain(&binding).chain(&advice).chain(&verifiable);
        let notices = all.map(String::as_str);
        notices
            .chain(source.notices().iter().map(String::as_str))
            .for_each(|notice| tell(&format!("notice: {notice}")));
    }
    let filter = log_filter(&request.log)?;
    let logging = &request.config.logging;
    let writes_files = !request.dry_run && !is_bench;
    if writes_files {
        run_folder::check_writable(logging, request.graph_report.as_deref(), env.rank)?;
        plan.watch.file = Some(Path::new(&logging.dir).join(RANKS));
    }
    logs::start(filter, writes_files.then(|| Path::new(&logging.dir)), env.rank)?;
    Ok(Prepared { plan, source, sets, files, accelerator })
}

/// Fails if steps are to be verified but the steps' bits differ from run to run.
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

/// Fails if a run on several machines is to keep states in memory.
fn check_one_machine(config: &RunConfig, env: &RankEnv) -> Result<(), UserError> {
    let interval = config.checkpoint.memory_interval;
    require(interval == 0 || env.local_size == env.world_size, || {
        UserError::new(
            format!(
                "checkpoint.memory_interval = {interval} with {} of {} ranks on this machine",
                env.local_size, env.world_size
            ),
            "states in shared memory are for runs with all ranks on one machine",
            "leave it out, and set a smaller checkpoint.interval (--save-interval)",
        )
    })
}

/// The log messages to show.
///
/// # Errors
/// A text that is no filter.
pub(super) fn log_filter(text: &str) -> Result<EnvFilter, UserError> {
    EnvFilter::try_new(text).map_err(|error| {
        let rule = "a filter is a level, or pairs of target=level";
        UserError::new(format!("--log {text}: {error}"), rule, "for example --log info")
    })
}

/// Brings all ranks together and does `work`, the same on all ranks; returns the exit code. `command` has the settings of
/// the command line alone, names and values; they are the same on all ranks.
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
    let every = [("dry-run", request.dry_run.to_string()), ("device", accelerator.kind().into())];
    let command = [command, &every[..]].concat();
    let settings = shared_settings(&plan.config, &command);
    let joined = Joined {
        connections: &plan.connections(),
        transfers: plan.config.parallel.tensor_transfers,
        shared: &settings,
        threads: train.threads,
        watch: &plan.watch,
    };
    on_all_ranks(env, joined, open, work)
}

/// The exit code of a run that came to its end.
fn exit_code(outcome: Option<Outcome>) -> i32 {
    if outcome.is_none_or(|outcome| outcome.finite) { 0 } else { 3 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainer::config::ConfigSources;

    #[test]
    fn states_in_memory_are_for_one_machine() {
        let problem = |interval: &str, local_size: usize| {
            let mut sources = ConfigSources::default();
            sources.set("checkpoint.memory_interval", interval, "test").unwrap();
            let env = RankEnv { local_size, ..RankEnv::local(4) };
            check_one_machine(&sources.resolve(), &env).err().map(|error| error.to_string())
        };
        let text = problem("5", 2).unwrap();
        assert!(text.contains("memory_interval = 5 with 2 of 4 ranks") && text.contains("one machine"), "{text}");
        assert_eq!((problem("5", 4), problem("0", 2)), (None, None));
    }

    #[test]
    fn a_gpu_verifies_only_steps_that_repeat_their_bits() {
        let problem = |text: &str, accelerator| {
            let sources = ConfigSources::of_pairs(text).unwrap();
            let plan = RunPlan::new(sources.resolve(), 1).unwrap();
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

    #[test]
    fn heads_that_are_too_wide_for_gpus_are_refused() {
        let problem = |heads: &str| {
            let mut sources = ConfigSources::default();
            for (key, value) in [("model.hidden", "1028"), ("model.heads", heads)] {
                sources.set(key, value, "test").unwrap();
            }
            let plan = RunPlan::new(sources.resolve(), 1).unwrap();
            suits_gpus(&plan.model).err().map(|error| error.to_string())
        };
        let text = problem("2").unwrap();
        assert!(text.contains("heads of 514 channels") && text.contains("at most 256 channels"), "{text}");
        assert_eq!(problem("257"), None);
    }
}
