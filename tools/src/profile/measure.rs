//! Measures a few steps without graphs, and a few in each scope.

use std::time::Instant;

use device::{Device, Timeline};
use engine::precision::Precision;

use super::activity::Activity;
use super::expected::{Expected, verdict};
use super::launches::launches;
use super::op_memory::{OpMemory, op_memory};
use super::operations::totals;
use super::result::{Profile, RankProfile, ScopeProfile};
use crate::predict::Memory;
use trainer::config::model_name::describe;
use trainer::config::plan::{RunPlan, graph_scope};
use trainer::config::{CudaGraphConfig, GraphScope, RunConfig};
use trainer::error::RunError;
use trainer::process_group::ProcessGroup;
use trainer::report::gpu_peak::Peaks;
use trainer::run::random_steps::{Inputs, RandomSteps, median};

/// Steps of a timeline.
const TRACED: usize = 2;

/// Steps that are submitted to an idle device, to measure the host's work for one.
const SUBMITTED: usize = 3;

/// The least steps in a row.
const FEWEST: usize = 3;

/// Measures `steps` steps in each scope, fewer where `steps` steps take longer than `patience` seconds. All ranks call it
/// together; all get the whole profile.
///
/// # Errors
/// See [`RunError`].
pub fn measure(
    plan: &RunPlan,
    group: &ProcessGroup,
    device: &Device,
    steps: usize,
    patience: f64,
) -> Result<Profile, RunError> {
    // A graph has the names of its operations only if this comes before the capture.
    device.prepare_timeline()?;
    let gpu = device.gpu().map(|gpu| gpu.name);
    let peaks = gpu.as_deref().and_then(Peaks::of);
    let mut here =
        RankProfile { rank: group.rank(), scopes: Vec::new(), operations: Vec::new(), op_memory: Vec::new() };
    for graphs in contenders(&plan.config) {
        let plan = plan.with_graphs(graphs)?;
        let (scope, timeline, memory) = measure_scope(&plan, group, device, steps, patience)?;
        if here.scopes.is_empty() {
            here.op_memory = memory;
            here.operations =
                totals(&timeline, TRACED, peaks.as_ref(), plan.config.precision.compute == Precision::Tf32);
        }
        here.scopes.push(scope);
    }
    let ranks: Vec<RankProfile> = (0..plan.parallel.mesh.ranks()).map(|rank| from_rank(rank, &here, group)).collect();
    let mut profile = Profile {
        model: format!(
            "{}, {} x {} samples a step",
            describe(&plan.config.model),
            plan.batch.microbatches(),
            plan.batch.micro
        ),
        device: gpu.clone().unwrap_or_else(|| "host".into()),
        ranks,
        expected: Vec::new(),
        verdict: String::new(),
    };
    let slowest = profile.slowest();
    let exposed = |rank: &RankProfile| rank.eager().activity.exposed_ms;
    let exposed_ms = profile.ranks.iter().map(exposed).fold(f64::MAX, f64::min);
    let [by_layer, by_chunk] = expected_launches(plan, slowest.rank);
    let expected = [("per_layer", by_layer), ("per_chunk", by_chunk), ("full_iteration", 1.0)]
        .map(|(scope, launches)| Expected::of(scope, launches, slowest.eager(), exposed_ms, gpu.is_some()));
    let measured = |expected: &Expected| slowest.scopes.iter().any(|scope| scope.scope == expected.scope);
    let expected: Vec<Expected> = expected.into_iter().filter(measured).collect();
    profile.verdict = verdict(slowest, &expected, exposed_ms, gpu.is_some());
    profile.expected = expected;
    Ok(profile)
}

/// The settings to compare: no graphs, the modules or layers that the configuration names, all layers, chunks, and the
/// whole step.
fn contenders(config: &RunConfig) -> Vec<CudaGraphConfig> {
    let asked = &config.cuda_graph;
    // A second lane needs communicators that only a run with this setting has.
    let overlaps = asked.enable && asked.overlap_microbatches;
    let with = |enable, scope, only: bool| CudaGraphConfig {
        enable,
        scope,
        overlap_microbatches: overlaps && enable,
        modules: if only { asked.modules.clone() } else { Vec::new() },
        layers: if only { asked.layers.clone() } else { Vec::new() },
        ..asked.clone()
    };
    let names_some = !asked.modules.is_empty() || !asked.layers.is_empty();
    let mut all = vec![with(false, GraphScope::PerLayer, false)];
    all.extend(names_some.then(|| with(true, GraphScope::PerLayer, true)));
    all.push(with(true, GraphScope::PerLayer, false));
    // Graphs leave the printed outputs out. Those of several layers cannot.
    if config.logging.print_activations.is_empty() {
        all.extend([GraphScope::PerChunk, GraphScope::FullIteration].map(|scope| with(true, scope, false)));
    }
    all
}

/// Graph launches of a rank's step with graphs for each layer, and with graphs for each chunk: forward and backward of each
/// for each microbatch, the last reduction and the update.
fn expected_launches(plan: &RunPlan, rank: usize) -> [f64; 2] {
    let chunks = plan.layers(rank).chunks;
    let layers: usize = chunks.iter().map(ExactSizeIterator::len).sum();
    [layers, chunks.len()].map(|parts| (2 * parts * plan.batch.microbatches() + 2) as f64)
}

fn measure_scope(
    plan: &RunPlan,
    group: &ProcessGroup,
    device: &Device,
    steps: usize,
    patience: f64,
) -> Result<(ScopeProfile, Timeline, Vec<OpMemory>), RunError> {
    let mut run = RandomSteps::new(plan, group, device)?;
    // Eager steps, the capture, and one that shows how long a step takes.
    let mut slowest = 0;
    for _ in 0..plan.graphs.warmup_steps + 2 {
        let started = Instant::now();
        run.step(Inputs::Copied)?;
        slowest = group.control.max(started.elapsed().as_micros() as u64);
    }
    let graphs = run.stage().graphs().report().driver_bytes.unwrap_or(0);
    let memory = Memory { graphs, ..Memory::planned(run.stage()) };
    let op_memory = op_memory(run.stage(), plan.batch.microbatches(), device);
    let affordable = (patience * 1e6 / slowest.max(1) as f64) as usize;
    let host_ms = run.submissions(SUBMITTED.min(affordable.max(1)), Inputs::There)?.issue_us / 1e3;
    run.in_a_row((steps / 2).min(affordable / 2))?; // until the clock is steady
    let row = run.in_a_row(steps.min(affordable).max(FEWEST))?;
    group.control.barrier();
    device.begin_timeline()?;
    let submitted = (0..TRACED).map(|_| run.submit(Inputs::There)).collect::<Result<Vec<_>, _>>()?;
    for (pending, _) in submitted {
        pending.wait()?;
    }
    let timeline = device.end_timeline()?;
    run.end()?;
    let graphs = launches(&timeline, TRACED);
    let scope = ScopeProfile {
        scope: if plan.graphs.enable { graph_scope(&plan.config.cuda_graph) } else { "off".into() },
        step_ms: median(row.milliseconds),
        host_ms,
        // From 0.0: the sum of no numbers is -0.0.
        launches: graphs.iter().fold(0.0, |sum, graph| sum + graph.count),
        graphs,
        memory,
        activity: Activity::of(&timeline, TRACED),
    };
    Ok((scope, timeline, op_memory))
}

/// The profile of rank `rank`, on all ranks.
fn from_rank(rank: usize, here: &RankProfile, group: &ProcessGroup) -> RankProfile {
    let text = group.control.broadcast_text(rank, serde_json::to_string(here).unwrap_or_default());
    serde_json::from_str(&text).expect("it was written by the same program")
}
