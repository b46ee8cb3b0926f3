//! An overview of the runs: their state, the options that differ between them, and the plan that each printed.

use common::format::{bytes, count, counted};
use toml::Value;

use super::events::EventKind;
use super::html::{escape, number, paragraph, section, table};
use super::metrics::Row;
use super::run::Run;
use super::settings::{Settings, differences};

pub(crate) fn overview(runs: &[Run]) -> String {
    let head = [
        "run",
        "state",
        "ranks",
        "steps",
        "last loss",
        "lowest validation loss",
        "tokens/s, median",
        "memory of rank 0",
    ];
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let mut html = table("How they stand", &head, &rows);
    for run in runs.iter().filter(|run| run.metrics.damaged > 0) {
        let damaged = counted(run.metrics.damaged, "line");
        html += &paragraph(&format!("{}: {damaged} of metrics.jsonl could not be read.", run.name));
    }
    for run in runs {
        let Some(plan) = &run.log.plan else { continue };
        html += &details("Plan", run, &format!("<pre tabindex=\"0\">{}</pre>", escape(plan)));
    }
    section("overview", "Runs", &html)
}

/// HTML about a run that is shown on demand.
fn details(what: &str, run: &Run, html: &str) -> String {
    format!("<details><summary>{what} of {}</summary>{html}</details>\n", escape(&run.name))
}

fn row(run: &Run) -> Vec<String> {
    let rows = &run.metrics.rows;
    let last = |value: Option<f64>| value.map_or("–".into(), number);
    let lowest = rows.values().filter_map(|row| row.validation_loss).min_by(f64::total_cmp);
    let mut speeds: Vec<f64> = rows.values().filter_map(|row| row.tokens_per_s).collect();
    speeds.sort_by(f64::total_cmp);
    let of_all = run.config.as_ref().map_or(String::new(), |config| format!(" of {}", config.train.steps));
    vec![
        run.name.clone(),
        state(run).into(),
        run.ranks.to_string(),
        format!("{}{of_all}", run.steps()),
        last(rows.values().next_back().and_then(|row| row.loss)),
        last(lowest),
        speeds.get(speeds.len() / 2).map_or("–".into(), |speed| count(*speed)),
        rows.values().rev().find_map(|row| row.memory_bytes).map_or("–".into(), |memory| bytes(memory as usize)),
    ]
}

fn state(run: &Run) -> &'static str {
    let last = run.log.events.iter().rev().map(|event| event.kind);
    let mut last =
        last.filter(|kind| !matches!(kind, EventKind::Warning | EventKind::SkippedStep | EventKind::Checkpoint));
    match last.next() {
        _ if run.log.is_done => "done",
        Some(EventKind::Fault) => "failed",
        Some(EventKind::End) => "stopped",
        _ => "not ended",
    }
}

/// The options that a run changed when it went on: step, option, before, then.
fn changed_settings(run: &Run) -> Vec<Vec<String>> {
    let shown = |value: &Option<Value>| value.as_ref().map_or("unset".into(), Value::to_string);
    let of_step = |row: &Row| -> Vec<Vec<String>> {
        let changed = row.changed_settings.iter();
        changed
            .map(|(key, change)| vec![row.step.to_string(), key.clone(), shown(&change.was), shown(&change.now)])
            .collect()
    };
    run.metrics.rows.values().flat_map(of_step).collect()
}

/// The options that differ between runs, and all options of each.
pub(crate) fn options(runs: &[Run]) -> String {
    let settings: Vec<&Settings> = runs.iter().map(|run| &run.settings).collect();
    let names = runs.iter().map(|run| run.name.as_str());
    let head: Vec<&str> = std::iter::once("option").chain(names).collect();
    let mut html = String::new();
    if runs.len() > 1 {
        let row = |(key, values): (&str, Vec<Option<&str>>)| {
            let values = values.into_iter().map(|value| value.unwrap_or("unset").to_string());
            std::iter::once(key.to_string()).chain(values).collect()
        };
        let rows: Vec<Vec<String>> = differences(&settings).into_iter().map(row).collect();
        html += &match rows.is_empty() {
            true => paragraph("The runs have the same options."),
            false => table("Options in which the runs differ", &head, &rows),
        };
    }
    for run in runs {
        let changed = changed_settings(run);
        if !changed.is_empty() {
            let caption = format!("Options that {} changed when it went on", run.name);
            html += &table(&caption, &["from step", "option", "before", "then"], &changed);
        }
        let rows: Vec<Vec<String>> = run.settings.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
        html += &match rows.is_empty() {
            true => paragraph(&format!("{}: config.toml is missing or is not TOML.", run.name)),
            false => details("All options", run, &table("Options", &["option", "value"], &rows)),
        };
    }
    section("options", "Options", &html)
}
