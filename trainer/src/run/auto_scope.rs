//! `cuda_graph.scope = "auto"`: tries the scopes of a graph, and chooses the fastest here.
//!
//! The trials train on random samples with a stage of their own. It is freed before the run begins. So the choice
//! changes no loss and no weight.

use std::time::Instant;

use common::UserError;
use common::format::step_time;
use device::Device;

use crate::config::plan::RunPlan;
use crate::config::{CudaGraphConfig, GraphScope};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::run::random_steps::{Inputs, RandomSteps, median};
use crate::run::set_up::{lack_of_memory, state_resolved};
use crate::told::say_and_log;

/// Steps of a trial that are timed. Fewer if they take longer than [`PATIENCE`].
const STEPS: usize = 12;

/// The least steps that are timed.
const FEWEST: usize = 3;

/// The longest that the timed steps of a trial may take, in seconds.
const PATIENCE: f64 = 2.0;

/// The share of a step that graphs must gain to be worth a start with graphs.
const WORTH: f64 = 0.01;

/// A scope that could be chosen.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    scope: GraphScope,
    /// Milliseconds of a step, or why the scope was not tried.
    step_ms: Result<f64, String>,
}

/// The chosen scope, with the reason.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    /// `None` for no graphs.
    scope: Option<GraphScope>,
    reason: String,
}

/// The plan of a run with the scope `auto`, changed to the scope that is fastest here; any other plan as it is. The share
/// of the optimizer's state on the host is chosen first, if it is as needed. All
/// ranks call it together and choose alike. A dry run measures nothing: it plans for graphs of each layer.
///
/// # Errors
/// See [`RunError`].
pub fn resolve(plan: &RunPlan, group: &ProcessGroup, device: &Device) -> Result<RunPlan, RunError> {
    let plan = &state_resolved(plan, device, group)?;
    let graphs = &plan.config.cuda_graph;
    if !graphs.enable || graphs.scope != GraphScope::Auto {
        return Ok(plan.clone());
    }
    if device.is_dry() {
        return Ok(with_scope(plan, Some(GraphScope::PerLayer))?);
    }
    let mut eager_ms = f64::MAX;
    let mut trials = Vec::new();
    for scope in [GraphScope::FullIteration, GraphScope::PerChunk, GraphScope::PerLayer] {
        let step_ms = match with_scope(plan, Some(scope)) {
            Err(UserError { what, rule, .. }) => Err(format!("{what}: {rule}")),
            Ok(plan) => match lack_of_memory(&plan, device, group)? {
                Some(why) => Err(why),
                None => {
                    let measured = measure(&plan, group, device)?;
                    eager_ms = eager_ms.min(measured.eager_ms);
                    Ok(measured.graphed_ms)
                }
            },
        };
        trials.push(Trial { scope, step_ms });
    }
    let choice = choose(eager_ms, &trials);
    if group.rank() == 0 {
        say_and_log(&format!("cuda_graph.scope = auto: {}", choice.reason));
    }
    Ok(with_scope(plan, choice.scope)?)
}

/// The same run with other graphs.
fn with_scope(plan: &RunPlan, scope: Option<GraphScope>) -> Result<RunPlan, UserError> {
    let enable = scope.is_some();
    let scope = scope.unwrap_or(GraphScope::PerLayer);
    plan.with_graphs(CudaGraphConfig { enable, scope, ..plan.config.cuda_graph.clone() })
}

/// Medians in milliseconds, of the slowest rank.
struct Measured {
    eager_ms: f64,
    graphed_ms: f64,
}

/// Times steps before and after the capture. Steps before it are those of a run without graphs.
fn measure(plan: &RunPlan, group: &ProcessGroup, device: &Device) -> Result<Measured, RunError> {
    let mut plan = plan.clone();
    // The first step is slower than the others. `in_a_row` runs two more than it times.
    plan.graphs.warmup_steps = FEWEST + 3;
    let slowest = |milliseconds: Vec<f64>| group.control.max((median(milliseconds) * 1e3) as u64) as f64 / 1e3;
    let mut run = RandomSteps::new(&plan, group, device)?;
    run.step(Inputs::Copied)?;
    let eager_ms = slowest(run.in_a_row(FEWEST)?.milliseconds);
    run.step(Inputs::There)?; // the capture
    let started = Instant::now();
    run.step(Inputs::There)?;
    let took = group.control.max(started.elapsed().as_micros() as u64) as f64 / 1e6;
    let steps = STEPS.min((PATIENCE / took.max(1e-6)) as usize).max(FEWEST);
    let graphed_ms = slowest(run.in_a_row(steps)?.milliseconds);
    run.end()?;
    Ok(Measured { eager_ms, graphed_ms })
}

/// The fastest scope. Without graphs if they gain nothing, or none can be made.
fn choose(eager_ms: f64, trials: &[Trial]) -> Choice {
    let told = |trial: &Trial| match &trial.step_ms {
        Ok(step_ms) => format!("{} takes {}", trial.scope, step_time(*step_ms)),
        Err(why) => format!("{} is out: {why}", trial.scope),
    };
    let tried = |trial: &Trial| Some((trial.scope, *trial.step_ms.as_ref().ok()?));
    let fastest = trials.iter().filter_map(tried).min_by(|a, b| a.1.total_cmp(&b.1));
    let all = || trials.iter().map(told).collect::<Vec<_>>().join("; ");
    match fastest {
        None => Choice { scope: None, reason: format!("no graphs. {}", all()) },
        Some((_, step_ms)) if step_ms > eager_ms * (1.0 - WORTH) => Choice {
            scope: None,
            reason: format!("no graphs: a step without takes {}. {}", step_time(eager_ms), all()),
        },
        Some((scope, _)) => {
            Choice { scope: Some(scope), reason: format!("{scope}. {}; without graphs {}", all(), step_time(eager_ms)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials(full: Result<f64, &str>, layers: Result<f64, &str>) -> Vec<Trial> {
        let trial = |scope, step_ms: Result<f64, &str>| Trial { scope, step_ms: step_ms.map_err(String::from) };
        vec![trial(GraphScope::FullIteration, full), trial(GraphScope::PerLayer, layers)]
    }

    #[test]
    fn the_fastest_scope_that_fits_is_chosen() {
        let choice = choose(131.0, &trials(Ok(62.3), Ok(62.7)));
        assert_eq!(choice.scope, Some(GraphScope::FullIteration));
        assert_eq!(
            choice.reason,
            "full_iteration. full_iteration takes 62.3 ms; per_layer takes 62.7 ms; without graphs 131 ms"
        );
        assert_eq!(choose(131.0, &trials(Ok(64.0), Ok(62.7))).scope, Some(GraphScope::PerLayer));
        let capped = choose(131.0, &trials(Err("a rank needs 90 GiB of memory, 79 GiB are free"), Ok(62.7)));
        assert_eq!(capped.scope, Some(GraphScope::PerLayer));
        assert!(capped.reason.contains("full_iteration is out: a rank needs 90 GiB"), "{}", capped.reason);
    }

    #[test]
    fn without_a_gain_or_without_room_there_are_no_graphs() {
        let busy = choose(100.0, &trials(Ok(99.5), Ok(99.9)));
        assert_eq!(busy.scope, None);
        assert!(busy.reason.starts_with("no graphs: a step without takes 100 ms."), "{}", busy.reason);
        assert_eq!(choose(100.0, &trials(Err("too large"), Err("too large"))).scope, None);
    }
}
