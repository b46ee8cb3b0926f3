//! Sections that are tables: the texts that the model wrote while it trained, the operations that took most of the
//! traced time, and the events of the runs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use common::Choice;
use common::format::counted;
use maud::{Markup, html};
use trainer::report::samples::StepSamples;

use super::events::{Event, EventKind};
use super::html::{number, of_runs, table};
use super::run::Run;
use super::trace::Trace;

/// The most texts of a prompt that are shown: the last ones.
const MOST_TEXTS: usize = 20;

/// The texts; `None` if no run has any.
pub(crate) fn samples(runs: &[Run]) -> Option<Markup> {
    let with: Vec<&Run> = runs.iter().filter(|run| !run.samples.is_empty()).collect();
    (!with.is_empty()).then(|| of_runs(with, |_, run| Ok(texts(&run.samples))))
}

/// A table for each prompt, with the newest text first.
fn texts(samples: &[StepSamples]) -> Markup {
    let mut prompts: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    for step in samples.iter().rev() {
        for sample in &step.samples {
            let texts = prompts.entry(&sample.prompt).or_default();
            if texts.len() < MOST_TEXTS {
                texts.push(vec![step.step.to_string(), sample.text.clone()]);
            }
        }
    }
    html! {
        @for (prompt, rows) in prompts { (table(&format!("After {prompt:?}"), &["step", "text"], &rows)) }
    }
}

/// Operations in the table.
const MOST_OPERATIONS: usize = 20;

pub(crate) fn operations(runs: &[Run]) -> Markup {
    of_runs(runs, |_, run| run.traces.as_ref().map(|traces| top(traces)).map_err(String::as_str))
}

/// The operations by total time over the timelines. The time of a transfer includes its wait for the other ranks.
fn top(traces: &[Trace]) -> Markup {
    let rows = totals(traces);
    let all: f64 = rows.iter().map(|(_, _, total)| total).sum();
    let cells = |(name, count, total): &(&str, usize, f64)| {
        let share = 100.0 * total / all.max(f64::MIN_POSITIVE);
        vec![
            name.to_string(),
            count.to_string(),
            number(*total),
            number(total / *count as f64),
            format!("{share:.1} %"),
        ]
    };
    let rows: Vec<Vec<String>> = rows.iter().take(MOST_OPERATIONS).map(cells).collect();
    let ranks: Vec<String> = traces.iter().map(|trace| trace.rank.to_string()).collect();
    let caption = format!(
        "Operations of {} {}, all steps of the timeline. A transfer's time includes its wait for other ranks.",
        if ranks.len() == 1 { "rank" } else { "ranks" },
        ranks.join(", ")
    );
    table(&caption, &["operation", "count", "total, ms", "mean, ms", "share"], &rows)
}

/// Each operation with the count and the total in milliseconds, the largest total first.
fn totals(traces: &[Trace]) -> Vec<(&str, usize, f64)> {
    let mut totals: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for operation in traces.iter().flat_map(|trace| &trace.operations) {
        let (count, total) = totals.entry(operation.short_name()).or_default();
        *count += 1;
        *total += operation.end - operation.start;
    }
    let mut rows: Vec<(&str, usize, f64)> =
        totals.into_iter().map(|(name, (count, total))| (name, count, total)).collect();
    rows.sort_by_key(|(_, _, total)| Reverse((total * 1e6) as u64));
    rows
}

/// The last events that are listed.
const MOST_EVENTS: usize = 200;

/// Starts, restarts, checkpoints, skipped steps, warnings and faults.
pub(crate) fn events(runs: &[Run]) -> Markup {
    let head = [&["run"], EventKind::WORDS].concat();
    let counts = |run: &Run| {
        let counts = EventKind::ALL.iter().map(|kind| run.log.count(*kind).to_string());
        std::iter::once(run.name.clone()).chain(counts).collect::<Vec<String>>()
    };
    let last = |_, run: &Run| {
        let events = &run.log.events;
        let row = |event: &Event| {
            let (time, text) = (event.time.get(..19).unwrap_or(&event.time).replace('T', " "), event.text.clone());
            vec![time, event.rank.to_string(), event.kind.word().to_string(), text]
        };
        let rows: Vec<Vec<String>> = events.iter().skip(events.len().saturating_sub(MOST_EVENTS)).map(row).collect();
        let caption = format!("The last {}, times in UTC", counted(rows.len(), "event"));
        match rows.is_empty() {
            true => Err("The folder has no logs of ranks."),
            false => Ok(table(&caption, &["time", "rank", "what", "text"], &rows)),
        }
    };
    html! { (table("How often", &head, &runs.iter().map(counts).collect::<Vec<_>>())) (of_runs(runs, last)) }
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Kind, Operation};
    use super::*;

    #[test]
    fn operations_of_all_ranks_are_summed_by_name_whatever_their_layer() {
        let operation = |name: &str, milliseconds: f64| Operation {
            name: name.into(),
            kind: Kind::Forward,
            microbatch: None,
            start: 10.0,
            end: 10.0 + milliseconds,
        };
        let first = vec![operation("forward of layer 1/gemm", 1.0), operation("forward of layer 2/norm", 4.0)];
        let traces =
            [Trace { rank: 0, operations: first }, Trace { rank: 1, operations: vec![operation("x/gemm", 2.0)] }];
        assert_eq!(totals(&traces), [("norm", 1, 4.0), ("gemm", 2, 3.0)]);
        let html = top(&traces).into_string();
        assert!(html.contains("Operations of ranks 0, 1,") && html.contains("57.1 %"), "{html}");
    }
}
