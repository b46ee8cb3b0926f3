//! `trainer`, and `trainer bench`: from a request to the run on all ranks.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use common::terminal::{print, warn};
use data::Source;
use launch::RankEnv;
use tracing_subscriber::EnvFilter;

use super::bench;
use crate::config::plan::RunPlan;
use crate::config::request::TrainRequest;
use crate::config::without_effect;
use crate::error::file_error;
use crate::report::logs;
use crate::report::reporter::Outcome;
use crate::run::accelerator::{Accelerator, Precision};
use crate::run::process_group::{Layout, on_all_ranks, refuse};
use crate::run::same_settings::settings;
use crate::run::source::{source, source_to_plan};
use crate::run::{outputs, train};

/// Trains as requested; with `bench` it measures so many steps instead. Returns the exit code. A request that is wrong ends
/// the process, before the device is touched.
pub fn train_or_bench(request: &TrainRequest, bench: Option<usize>, ranks: &RankEnv, began: Instant) -> i32 {
    // Of the ranks that refuse, the first one speaks.
    // A benchmark makes its own data.
    let open = if request.dry_run || bench.is_some() { source_to_plan } else { source };
    let (mut plan, source) = RunPlan::new(request.config.clone(), ranks.world_size)
        .and_then(|plan| open(&plan).map(|source| (plan, source)))
        .unwrap_or_else(|error| refuse(ranks, &error.to_string()));
    plan.graphs.poison = request.check_graphs;
    let accelerator =
        Accelerator::choose(&plan.config.train.device, ranks).unwrap_or_else(|error| refuse(ranks, &error.to_string()));
    if ranks.rank == 0 {
        let without_effect = without_effect::notices(&plan, bench.is_some());
        request.notices.iter().chain(&without_effect).for_each(|notice| warn(&format!("notice: {notice}")));
    }
    let filter = EnvFilter::try_new(&request.log).unwrap_or_else(|error| {
        let rule = "it is a level or target=level pairs";
        refuse(ranks, &format!("--log {}: {error}. Rule: {rule}. Fix: for example --log info", request.log))
    });
    if !request.dry_run && bench.is_none() {
        outputs::check(&plan, request, ranks.rank).unwrap_or_else(|error| refuse(ranks, &error.to_string()));
    }
    let folder = (!request.dry_run && bench.is_none()).then(|| Path::new(&request.config.logging.dir));
    logs::start(filter, folder, ranks.rank).unwrap_or_else(|error| refuse(ranks, &error.to_string()));
    start(&plan, request, ranks, accelerator, source, bench.map(|steps| (steps, began)))
}

/// Starts all ranks together and trains, or measures so many steps; the exit code.
fn start(
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
            return train(plan, request, ranks, device, source).map(exit_code);
        };
        let result = bench::run(plan, ranks, device, steps, began)?;
        if ranks.rank == 0 {
            print(&serde_json::to_string_pretty(&result).unwrap_or_default())
                .map_err(file_error("standard output".into()))?;
        }
        Ok(0)
    })
}

/// Of a run that came to its end.
fn exit_code(outcome: Option<Outcome>) -> i32 {
    if outcome.is_none_or(|outcome| outcome.finite) { 0 } else { 3 }
}
