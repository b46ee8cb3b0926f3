//! An overview of the runs: their state, the options that differ between them, and the plan that each printed.

use std::collections::BTreeMap;

use common::escape::visible;
use common::format::{bytes, count, counted};
use maud::{Markup, html};
use toml::{Table, Value};

use super::events::EventKind;
use super::html::{number, paragraph, table};
use super::metrics::Row;
use super::run::Run;

pub(crate) fn overview(runs: &[Run]) -> Markup {
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
    html! {
        (table("How they stand", &head, &rows))
        @for run in runs.iter().filter(|run| run.metrics.damaged > 0) {
            @let damaged = counted(run.metrics.damaged, "line");
            (paragraph(&format!("{}: {damaged} of metrics.jsonl could not be read.", run.name)))
        }
        @for run in runs {
            @if let Some(plan) = &run.log.plan {
                (details("Plan", run, &html! { pre tabindex="0" { (visible(plan)) } }))
            }
        }
    }
}

/// HTML about a run that is shown on demand.
fn details(what: &str, run: &Run, content: &Markup) -> Markup {
    html! { details { summary { (what) " of " (visible(&run.name)) } (content) } }
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

/// The options that a run changed on going on: step, option, before, then.
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
pub(crate) fn options(runs: &[Run]) -> Markup {
    let settings: Vec<&Settings> = runs.iter().map(|run| &run.settings).collect();
    let names = runs.iter().map(|run| run.name.as_str());
    let head: Vec<&str> = std::iter::once("option").chain(names).collect();
    let row = |(key, values): (&str, Vec<Option<&str>>)| {
        let values = values.into_iter().map(|value| value.unwrap_or("unset").to_string());
        std::iter::once(key.to_string()).chain(values).collect()
    };
    let differing: Vec<Vec<String>> = differences(&settings).into_iter().map(row).collect();
    html! {
        @match (runs.len() > 1, differing.is_empty()) {
            (true, true) => { (paragraph("The runs have the same options.")) }
            (true, false) => { (table("Options in which the runs differ", &head, &differing)) }
            (false, _) => {}
        }
        @for run in runs { (of_run(run)) }
    }
}

fn of_run(run: &Run) -> Markup {
    let changed = changed_settings(run);
    let all: Vec<Vec<String>> = run.settings.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    html! {
        @if !changed.is_empty() {
            @let caption = format!("Options that {} changed when it went on", run.name);
            (table(&caption, &["from step", "option", "before", "then"], &changed))
        }
        @if all.is_empty() {
            (paragraph(&format!("{}: config.toml is missing or is not TOML.", run.name)))
        } @else {
            (details("All options", run, &table("Options", &["option", "value"], &all)))
        }
    }
}

/// Every option of a run: its key and its value as TOML.
pub(crate) type Settings = BTreeMap<String, String>;

/// The options in a TOML text with sections. A text that is not TOML has none.
pub(crate) fn settings(text: &str) -> Settings {
    let sections = text.parse::<Table>().unwrap_or_default();
    let in_section = |(section, values): (String, Value)| match values {
        Value::Table(values) => values.into_iter().map(|(name, value)| (format!("{section}.{name}"), value)).collect(),
        value => vec![(section, value)],
    };
    sections.into_iter().flat_map(in_section).map(|(key, value)| (key, value.to_string())).collect()
}

/// The options that the runs do not share: each key with the value of each run, `None` if it is unset. The folder of
/// the logs is not among them: it names the run.
pub(crate) fn differences<'s>(runs: &[&'s Settings]) -> Vec<(&'s str, Vec<Option<&'s str>>)> {
    let mut keys: Vec<&str> = runs.iter().flat_map(|settings| settings.keys().map(String::as_str)).collect();
    keys.sort_unstable();
    keys.dedup();
    let values = |key: &str| runs.iter().map(|settings| settings.get(key).map(String::as_str)).collect();
    let all = keys.into_iter().filter(|key| *key != "logging.dir").map(|key| (key, values(key)));
    all.filter(|(_, values): &(&str, Vec<Option<&str>>)| values.iter().any(|value| *value != values[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_listed_and_an_option_that_a_run_lacks_is_unset() {
        let a = settings("[train]\nsteps = 5\nseed = 1\n[logging]\ndir = \"a\"\ntrace = \"t.json\"\n");
        let b = settings("[train]\nsteps = 7\nseed = 1\n[logging]\ndir = \"b\"\n");
        let expected = [("logging.trace", vec![Some("\"t.json\""), None]), ("train.steps", vec![Some("5"), Some("7")])];
        assert_eq!(differences(&[&a, &b]), expected);
        assert!(
            differences(&[&a, &a]).is_empty() && differences(&[&a]).is_empty() && settings("no = = toml").is_empty()
        );
    }
}
