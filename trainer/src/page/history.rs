//! What happened: starts, restarts, checkpoints, skipped steps, warnings, faults.

use super::events::{Event, EventKind};
use super::html::{of_run, paragraph, section, table};
use super::run::Run;

/// The last events that are listed.
const LISTED: usize = 200;

pub(crate) fn history(runs: &[Run]) -> String {
    let kinds: Vec<&str> = EventKind::ALL.map(EventKind::word).into();
    let head: Vec<&str> = std::iter::once("run").chain(kinds).collect();
    let counts = |run: &Run| {
        let counts = EventKind::ALL.map(|kind| run.log.count(kind).to_string());
        std::iter::once(run.name.clone()).chain(counts).collect::<Vec<String>>()
    };
    let mut html = table("How often", &head, &runs.iter().map(counts).collect::<Vec<_>>());
    for run in runs {
        let events = &run.log.events;
        let row = |event: &Event| {
            let (time, text) = (event.time.get(..19).unwrap_or(&event.time).replace('T', " "), event.text.clone());
            vec![time, event.rank.to_string(), event.kind.word().to_string(), text]
        };
        let rows: Vec<Vec<String>> = events.iter().skip(events.len().saturating_sub(LISTED)).map(row).collect();
        let shown = match rows.is_empty() {
            true => paragraph("The folder has no logs of ranks."),
            false => table(
                &format!("The last {} events, times in UTC", rows.len()),
                &["time", "rank", "what", "text"],
                &rows,
            ),
        };
        html += &of_run(runs.len(), &run.name, &shown);
    }
    section("events", "Events", &html)
}
