//! Graphs: the captured regions, the others with the reasons, and the order of replays.

use std::collections::BTreeSet;

use common::format::bytes;
use maud::{Markup, PreEscaped, html};

use super::html::{figure, of_runs, paragraph, table};
use super::run::{RankGraphs, Run};
use trainer::report::replay_picture::{largest_training_step, replay_picture, stage_part};

pub(crate) fn graphs(runs: &[Run]) -> Markup {
    of_runs(runs, |at, run| match (&run.graphs, &run.log.graphs) {
        (Ok(ranks), _) => Ok(of_ranks(at, ranks)),
        (Err(why), Some(line)) => Ok(html! { (paragraph(&format!("The run printed: {line}"))) (paragraph(why)) }),
        (Err(why), None) => Err(why.as_str()),
    })
}

fn of_ranks(at: usize, ranks: &[RankGraphs]) -> Markup {
    let head = ["rank", "step", "microbatches", "graphs", "launches a step", "operations", "captured", "not captured"];
    let eager = ranks.iter().flat_map(|rank| &rank.report.eager);
    let reasons: BTreeSet<Vec<String>> = eager.map(|eager| vec![eager.region.clone(), eager.reason.clone()]).collect();
    let title = |rank: &RankGraphs| format!("stage {}, rank {}", rank.pipeline, rank.rank);
    let parts: Vec<String> = ranks.iter().map(|rank| stage_part(&title(rank), &rank.report)).collect();
    let picture = html! { div class="wide replay" { (PreEscaped(replay_picture(&parts))) } };
    let caption = "The order of replays in a training step, stage by stage. Each box is a graph's launch.";
    html! {
        (table("What a step launches", &head, &ranks.iter().flat_map(coverage).collect::<Vec<_>>()))
        @if reasons.is_empty() {
            (paragraph("Every operation is captured."))
        } @else {
            (table("What is not captured", &["region", "why"], &reasons.into_iter().collect::<Vec<_>>()))
        }
        (paragraph(&driver_memory(ranks)))
        (figure(&format!("replays-{at}"), &picture, caption, &order(ranks)))
    }
}

/// The driver's memory for graphs, in a sentence.
fn driver_memory(ranks: &[RankGraphs]) -> String {
    let of_rank = |rank: &RankGraphs| Some(format!("{} on rank {}", bytes(rank.report.driver_bytes?), rank.rank));
    let measured: Option<Vec<String>> = ranks.iter().map(of_rank).collect();
    match measured {
        Some(measured) => format!(
            "The driver took {} for these graphs. It is a difference of free memory, and no part of the memory plan.",
            measured.join(", ")
        ),
        None => "The driver's memory for graphs was not measured: that needs a GPU.".into(),
    }
}

fn coverage(rank: &RankGraphs) -> Vec<Vec<String>> {
    let row = |step: &graph_manager::StepReport| {
        let launched: Vec<usize> = step.order.iter().filter_map(|launch| launch.graph).collect();
        let captured = step.operations.saturating_sub(step.eager_operations);
        vec![
            rank.rank.to_string(),
            step.mode.clone(),
            step.microbatches.to_string(),
            launched.iter().collect::<BTreeSet<_>>().len().to_string(),
            launched.len().to_string(),
            step.operations.to_string(),
            format!("{captured} ({:.1} %)", 100.0 * captured as f64 / step.operations.max(1) as f64),
            step.eager_operations.to_string(),
        ]
    };
    rank.report.steps.iter().map(row).collect()
}

/// The order of replays in words: launches of the same kind after each other are one row.
fn order(ranks: &[RankGraphs]) -> Markup {
    let mut rows = Vec::new();
    for rank in ranks {
        let Some(step) = largest_training_step(&rank.report) else { continue };
        let name = |launch: &graph_manager::Launch| {
            let kind = launch.region.split(" of layer").next().unwrap_or_default().to_string();
            (kind, launch.microbatch, launch.graph.is_some())
        };
        for same in step.order.chunk_by(|a, b| name(a) == name(b)) {
            let (kind, microbatch, captured) = name(&same[0]);
            let how = if captured { "graph" } else { "eager" };
            let microbatch = microbatch.map_or(String::new(), |microbatch| microbatch.to_string());
            rows.push(vec![rank.rank.to_string(), kind, microbatch, same.len().to_string(), how.to_string()]);
        }
    }
    table("Launches in order", &["rank", "region", "microbatch", "times", "how"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_memory_is_told_for_each_rank_or_said_not_to_be_measured() {
        let rank = |rank: usize, driver_bytes: &str| {
            let json = format!(
                r#"{{"rank": {rank}, "pipeline": 0, "graphs": [], "eager": [], "memory": [], "steps": [], "driver_bytes": {driver_bytes}}}"#
            );
            serde_json::from_str::<RankGraphs>(&json).unwrap()
        };
        let told = driver_memory(&[rank(0, "3145728"), rank(1, "0")]);
        assert!(told.starts_with("The driver took 3.00 MiB on rank 0, 0 B on rank 1 for"), "{told}");
        let unmeasured = driver_memory(&[rank(0, "null")]);
        assert!(unmeasured.contains("was not measured: that needs a GPU"), "{unmeasured}");
    }
}
