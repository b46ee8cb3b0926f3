//! The operations that took most of the traced time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::html::{number, of_runs, section, table};
use super::made_files::Made;
use super::run::Run;
use super::trace::Trace;

/// Operations in the table.
const LISTED: usize = 20;

pub(crate) fn operations(runs: &[Run]) -> String {
    let parts = runs.iter().map(|run| {
        let part = match &run.traces {
            Made::There(traces) => Ok(top(traces)),
            Made::Missing(why) => Err(why.as_str()),
        };
        (run.name.as_str(), part)
    });
    section("operations", "Operations", &of_runs(parts))
}

/// The operations by their total time over the timelines. The time of a transfer includes its wait for the other ranks.
fn top(traces: &[Trace]) -> String {
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
    let rows: Vec<Vec<String>> = rows.iter().take(LISTED).map(cells).collect();
    let ranks: Vec<String> = traces.iter().map(|trace| trace.rank.to_string()).collect();
    let caption = format!(
        "Operations of {} {}, all steps of the timeline. A transfer's time includes its wait for other ranks.",
        if ranks.len() == 1 { "rank" } else { "ranks" },
        ranks.join(", ")
    );
    table(&caption, &["operation", "count", "total, ms", "mean, ms", "share"], &rows)
}

/// Each operation with its count and its total in milliseconds, the largest total first.
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
        let html = top(&traces);
        assert!(html.contains("Operations of ranks 0, 1,") && html.contains("57.1 %"), "{html}");
    }
}
