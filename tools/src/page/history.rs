//! The events of the runs: starts, restarts, checkpoints, skipped steps, warnings, faults.

use common::format::counted;

use super::events::{Event, EventKind};
use super::html::{of_runs, section, table};
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
    let parts = runs.iter().map(|run| {
        let events = &run.log.events;
        let row = |event: &Event| {
            let (time, text) = (event.time.get(..19).unwrap_or(&event.time).replace('T', " "), event.text.clone());
            vec![time, event.rank.to_string(), event.kind.word().to_string(), text]
        };
        let rows: Vec<Vec<String>> = events.iter().skip(events.len().saturating_sub(LISTED)).map(row).collect();
        let caption = format!("The last {}, times in UTC", counted(rows.len(), "event"));
        let part = match rows.is_empty() {
            true => Err("The folder has no logs of ranks."),
            false => Ok(table(&caption, &["time", "rank", "what", "text"], &rows)),
        };
        (run.name.as_str(), part)
    });
    html += &of_runs(parts);
    section("events", "Events", &html)
}
