//! The trainer: one process per rank.

use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::time::Instant;

use launch::RankEnv;
use parallel::{Grid, set_library_defaults};
use tracing_subscriber::EnvFilter;
use trainer::accelerator::{Accelerator, Precision};
use trainer::all_ranks::{Layout, fail, on_all_ranks, refuse};
use trainer::batches::write_batches;
use trainer::bench;
use trainer::checkpoint;
use trainer::cli::{Request, TrainRequest, parse};
use trainer::data::Source;
use trainer::doctor::{self, DoctorOptions};
use trainer::hf::convert;
use trainer::logs;
use trainer::outputs;
use trainer::plan::RunPlan;
use trainer::run::{self, RunError};
use trainer::same_settings::settings;
use trainer::sample::{Loaded, SampleRequest};
use trainer::terminal::{print, warn};
use trainer::watch::WatchSettings;
use trainer::without_effect;

fn main() {
    let began = Instant::now();
    set_library_defaults();
    let ranks = RankEnv::detect().unwrap_or_else(|error| fail(true, 2, &error.to_string()));
    let main = ranks.rank == 0;
    let (request, bench) = match parse(std::env::args_os()) {
        Ok(Request::Train(request)) => (request, None),
        // A dry run has nothing to measure, and prints the plan of what would be.
        Ok(Request::Bench(request, _)) if request.dry_run => (request, None),
        Ok(Request::Bench(request, steps)) => (request, Some(steps)),
        Ok(Request::Doctor { options, device }) => exit(doctor(options, &device, &ranks)),
        Ok(Request::Tokenize(_)) if ranks.world_size > 1 => {
            let rule = "one process tokenises, with all cores that it may use";
            refuse(
                &ranks,
                &format!("tokenize on {} ranks. Rule: {rule}. Fix: start it without mpirun", ranks.world_size),
            )
        }
        Ok(Request::Tokenize(request)) => match trainer::data::tokenize(&request) {
            Ok(report) => return print_or_fail(&report),
            Err(error) => fail(main, error.exit_code(), &error.to_string()),
        },
        Ok(Request::Batches(request)) => {
            if main {
                match write_batches(&request) {
                    Ok(report) => print_or_fail(&report),
                    Err(error) => fail(true, error.exit_code(), &error.to_string()),
                }
            }
            return;
        }
        Ok(Request::Supervise(_)) if ranks.world_size > 1 => {
            let rule = "one process starts the ranks";
            let what = format!("supervise on {} ranks", ranks.world_size);
            refuse(
                &ranks,
                &format!("{what}. Rule: {rule}. Fix: trainer supervise -- mpirun -n {} trainer", ranks.world_size),
            )
        }
        Ok(Request::Supervise(request)) => match request.run() {
            Ok(ending) => exit(ending.exit_code()),
            Err(error) => fail(true, 2, &error.to_string()),
        },
        Ok(Request::Print(text)) => {
            if main {
                print_or_fail(text.trim_end());
            }
            return;
        }
        Ok(Request::ListCheckpoints(dir)) => match checkpoint::list(&dir) {
            Ok((text, complete)) => {
                if main {
                    print_or_fail(text.trim_end());
                }
                exit(if complete { 0 } else { 3 })
            }
            Err(error) => fail(main, 2, &error.to_string()),
        },
        Ok(Request::Convert(request)) => {
            if main {
                match convert(&request.source, &request.target, request.direction) {
                    Ok(line) => print_or_fail(&line),
                    Err(error) => fail(true, error.exit_code(), &error.to_string()),
                }
            }
            return;
        }
        Ok(Request::Sample(request)) => {
            if main {
                exit(sample(&request, &ranks));
            }
            return;
        }
        Err(error) => refuse(&ranks, &error.to_string()),
    };
    // All validation comes before the device is touched; of the ranks that refuse, the first speaks.
    // A benchmark makes its own data.
    let open = if request.dry_run || bench.is_some() { run::source_to_plan } else { run::source };
    let (mut plan, source) = RunPlan::new(request.config.clone(), ranks.world_size)
        .and_then(|plan| open(&plan).map(|source| (plan, source)))
        .unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    plan.graphs.poison = request.check_graphs;
    let accelerator = Accelerator::choose(&plan.config.train.device, &ranks)
        .unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    if main {
        let without_effect = without_effect::notices(&plan, bench.is_some());
        request.notices.iter().chain(&without_effect).for_each(|notice| warn(&format!("notice: {notice}")));
    }
    let filter = EnvFilter::try_new(&request.log).unwrap_or_else(|error| {
        let rule = "it is a level or target=level pairs";
        refuse(&ranks, &format!("--log {}: {error}. Rule: {rule}. Fix: for example --log info", request.log))
    });
    if !request.dry_run && bench.is_none() {
        outputs::check(&plan, &request, ranks.rank).unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    }
    let folder = (!request.dry_run && bench.is_none()).then(|| Path::new(&request.config.logging.dir));
    logs::start(filter, folder, ranks.rank).unwrap_or_else(|error| refuse(&ranks, &error.to_string()));
    exit(train(&plan, &request, &ranks, accelerator, source, bench.map(|steps| (steps, began))));
}

/// Trains on all ranks, or measures so many steps; the exit code.
fn train(
    plan: &RunPlan,
    request: &TrainRequest,
    env: &RankEnv,
    accelerator: Accelerator,
    source: Arc<dyn Source>,
    bench: Option<(usize, Instant)>,
) -> i32 {
    let open = |threads| {
        let deterministic = plan.config.train.deterministic;
        let tf32 = plan.config.precision.compute == "tf32";
        let device = accelerator.open(Precision { deterministic, tf32 }, threads, request.check_graphs)?;
        device.set_dry(request.dry_run);
        Ok(device)
    };
    let chunks = plan.config.parallel.virtual_pipeline;
    let layout = Layout { grid: plan.grid, ring: chunks > 1, shares_table: plan.shares_table() };
    let steps = bench.map_or(String::new(), |(steps, _)| steps.to_string());
    let command = [("bench", steps), ("dry-run", request.dry_run.to_string()), ("device", accelerator.kind().into())];
    let told = settings(&plan.config, &command);
    on_all_ranks(env, layout, &told, plan.config.train.threads, &plan.watch, open, |ranks, device| {
        let Some((steps, began)) = bench else {
            return run::train(plan, request, ranks, device, source).map(exit_code);
        };
        let result = bench::run(plan, ranks, device, steps, began)?;
        if ranks.rank == 0 {
            print(&serde_json::to_string_pretty(&result).unwrap_or_default())?;
        }
        Ok(0)
    })
}

/// Of a run that came to its end.
fn exit_code(outcome: Option<run::Outcome>) -> i32 {
    if outcome.is_none_or(|outcome| outcome.finite) { 0 } else { 3 }
}

/// Examines the machine; the exit code.
fn doctor(options: DoctorOptions, device: &str, env: &RankEnv) -> i32 {
    let accelerator = Accelerator::choose(device, env).unwrap_or_else(|error| refuse(env, &error.to_string()));
    let open = |threads| accelerator.open(Precision::default(), threads, false);
    let grid = Grid { tensor: 1, data: env.world_size, pipeline: 1 };
    let layout = Layout { grid, ring: false, shares_table: false };
    let told = format!("device = {}\n", accelerator.kind());
    on_all_ranks(env, layout, &told, None, &WatchSettings::default(), open, |ranks, device| {
        Ok(doctor::run(options, accelerator, device, ranks.group.as_ref()))
    })
}

/// Goes on with a text; the exit code.
fn sample(request: &SampleRequest, env: &RankEnv) -> i32 {
    let threads =
        request.threads.unwrap_or_else(|| launch::host_threads(launch::online_cores(), launch::allowed_cores(), 1));
    let done = Loaded::open(request).map_err(RunError::from).and_then(|loaded| {
        let accelerator = Accelerator::choose(&request.device, env)?;
        let device = accelerator.open(Precision::default(), threads, false)?;
        trainer::sample::sample(request, &loaded, &device, &mut std::io::stdout())
    });
    match done {
        Ok(line) => {
            warn(&line);
            0
        }
        Err(error) => fail(true, error.exit_code(), &error.to_string()),
    }
}

/// Prints what was asked for; ends the process where that cannot be.
fn print_or_fail(text: &str) {
    print(text).unwrap_or_else(|error| fail(true, error.exit_code(), &error.to_string()));
}
