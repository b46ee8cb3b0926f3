//! A profile as text.

use common::format::{bytes, counted};

use super::activity::Histogram;
use super::launches::Launches;
use super::op_memory::OpMemory;
use super::operations::Total;
use super::result::{Profile, ScopeProfile};

/// Operations in the table.
pub(super) const LISTED: usize = 20;

/// Graphs of a scope in the table.
const LAUNCHED: usize = 4;

/// A table's cells by row; the first row is the head, the first cell of a row the row's name.
pub(super) type Cells = Vec<Vec<String>>;

/// The profile as tables for a terminal.
pub fn table(profile: &Profile) -> String {
    let ranks = if profile.ranks.len() > 1 {
        format!(", {} ranks; rank {}, the slowest without graphs", profile.ranks.len(), profile.slowest().rank)
    } else {
        String::new()
    };
    let title = format!("{} on {}{ranks}", profile.model, profile.device);
    let parts = [
        scopes(profile),
        memory(profile),
        histograms(profile),
        operations(profile),
        op_memory(profile),
        launches(profile),
    ];
    let tables: Vec<String> = parts.iter().map(aligned).collect();
    format!("{title}\n\n{}\n{}", tables.join("\n"), profile.verdict)
}

fn column_heads(first: &str, scopes: &[ScopeProfile]) -> Vec<String> {
    std::iter::once(first.into()).chain(scopes.iter().map(|scope| scope.scope.clone())).collect()
}

/// A row with a number of each scope.
fn row(name: &str, scopes: &[ScopeProfile], cell: impl Fn(&ScopeProfile) -> String) -> Vec<String> {
    std::iter::once(name.to_string()).chain(scopes.iter().map(cell)).collect()
}

/// Times of a step, and the parts of each, by scope.
pub(super) fn scopes(profile: &Profile) -> Cells {
    let scopes = &profile.slowest().scopes;
    let share = |of: f64, all: f64| format!("{:.1} %", (100.0 * of / all).min(100.0));
    let expected = |scope: &ScopeProfile| profile.expected(&scope.scope);
    let eager = scopes[0].step_ms;
    let mut rows = vec![
        column_heads("a step", scopes),
        row("milliseconds", scopes, |scope| format!("{:.3}", scope.step_ms)),
        row("  expected", scopes, |scope| {
            expected(scope).map_or(String::new(), |expected| format!("{:.3}", expected.step_ms))
        }),
        row("times the speed", scopes, |scope| format!("{:.2}", eager / scope.step_ms)),
        row("  expected", scopes, |scope| {
            expected(scope).map_or(String::new(), |expected| format!("{:.2}", expected.gain))
        }),
        row("host submits, ms", scopes, |scope| format!("{:.3}", scope.host_ms)),
        row("device busy", scopes, |scope| share(scope.activity.busy_ms, scope.step_ms)),
        row("kernels", scopes, |scope| format!("{:.0}", scope.activity.kernels)),
        row("  of them below 50 us", scopes, |scope| format!("{:.0}", scope.activity.short_kernels)),
    ];
    if scopes.iter().any(|scope| scope.launches > 0.0) {
        rows.push(row("graph launches", scopes, |scope| format!("{:.0}", scope.launches)));
    }
    if scopes.iter().any(|scope| scope.activity.transfers_ms > 0.0) {
        rows.push(row("transfers, ms", scopes, |scope| format!("{:.3}", scope.activity.transfers_ms)));
        rows.push(row("  of them exposed", scopes, |scope| format!("{:.3}", scope.activity.exposed_ms)));
    }
    if profile.ranks.len() > 1 {
        let all = |at: usize| profile.ranks.iter().map(move |rank| rank.scopes[at].step_ms);
        let spread = |at: usize| all(at).fold(f64::MIN, f64::max) - all(at).fold(f64::MAX, f64::min);
        let name = "slowest less fastest rank, ms".to_string();
        rows.push(std::iter::once(name).chain((0..scopes.len()).map(|at| format!("{:.3}", spread(at)))).collect());
    }
    rows
}

/// Memory by kind, by scope.
pub(super) fn memory(profile: &Profile) -> Cells {
    let scopes = &profile.slowest().scopes;
    vec![
        column_heads("memory", scopes),
        row("weights", scopes, |scope| bytes(scope.memory.weights)),
        row("gradients", scopes, |scope| bytes(scope.memory.gradients)),
        row("optimizer", scopes, |scope| bytes(scope.memory.optimizer)),
        row("activations, scratch", scopes, |scope| bytes(scope.memory.activations)),
        row("samples, numbers", scopes, |scope| bytes(scope.memory.rest)),
        row("graphs", scopes, |scope| bytes(scope.memory.graphs)),
        row("all", scopes, |scope| bytes(scope.memory.total())),
    ]
}

/// How long kernels take and how long the device waits between kernels, without graphs and in the fastest scope.
pub(super) fn histograms(profile: &Profile) -> Cells {
    let (eager, fastest) = (profile.slowest().eager(), profile.slowest().fastest());
    let head = [
        "time of",
        "kernels, off",
        "gaps, off",
        &format!("kernels, {}", fastest.scope),
        &format!("gaps, {}", fastest.scope),
    ]
    .map(String::from);
    let bins = [eager, fastest].map(|scope| [&scope.activity.kernel_times, &scope.activity.gaps]);
    let rows = Histogram::labels().into_iter().enumerate().map(|(at, label)| {
        let counts = bins.iter().flatten().map(|histogram| histogram.0[at].to_string());
        std::iter::once(label).chain(counts).collect()
    });
    std::iter::once(head.to_vec()).chain(rows).collect()
}

/// The operations that take most of a step without graphs.
pub(super) fn operations(profile: &Profile) -> Cells {
    let head = ["operation", "shape", "type", "count", "total ms", "mean us", "host us", "share", "of its limit"]
        .map(String::from);
    let cells = |total: &Total| {
        let limit = total.of_limit.map_or(String::new(), |share| {
            format!("{:.0} % of {}", 100.0 * share, if total.limited_by_flops { "FLOPs" } else { "bytes" })
        });
        vec![
            total.name.clone(),
            total.shape.clone(),
            total.dtype.clone(),
            format!("{:.0}", total.count),
            format!("{:.3}", total.total_ms),
            format!("{:.1}", total.mean_ms * 1e3),
            format!("{:.1}", total.host_ms / total.count * 1e3),
            format!("{:.1} %", 100.0 * total.share),
            limit,
        ]
    };
    let rows = profile.slowest().operations.iter().take(LISTED).map(cells);
    std::iter::once(head.to_vec()).chain(rows).collect()
}

/// The memory of operations without graphs, those first that run while most is in use.
pub(super) fn op_memory(profile: &Profile) -> Cells {
    let head =
        ["memory of an operation", "shape", "type", "tensors", "scratch", "in use while it runs"].map(String::from);
    let cells = |of: &OpMemory| {
        let OpMemory { name, shape, dtype, tensors, scratch, in_use } = of;
        vec![name.clone(), shape.clone(), dtype.clone(), bytes(*tensors), bytes(*scratch), bytes(*in_use)]
    };
    let rows = profile.slowest().op_memory.iter().take(LISTED / 2).map(cells);
    std::iter::once(head.to_vec()).chain(rows).collect()
}

/// The graphs of each scope whose launches take most of the host's time.
pub(super) fn launches(profile: &Profile) -> Cells {
    let head = ["graph", "scope", "launches", "host us each"].map(String::from);
    let mut cells = vec![head.to_vec()];
    for scope in &profile.slowest().scopes {
        let row = |of: &Launches| {
            let each_us = of.host_ms / of.count * 1e3;
            vec![of.graph.clone(), scope.scope.clone(), format!("{:.0}", of.count), format!("{each_us:.1}")]
        };
        cells.extend(scope.graphs.iter().take(LAUNCHED).map(row));
        let others = &scope.graphs[scope.graphs.len().min(LAUNCHED)..];
        if !others.is_empty() {
            let sum = |number: fn(&Launches) -> f64| others.iter().map(number).sum::<f64>();
            let (count, host_ms) = (sum(|of| of.count), sum(|of| of.host_ms));
            cells.push(row(&Launches { graph: counted(others.len(), "other graph"), count, host_ms }));
        }
    }
    cells
}

/// Columns of equal width: the first to the left, the others to the right.
fn aligned(cells: &Cells) -> String {
    let columns = cells[0].len();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_string() + "\n"
    };
    cells.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let cells = [["a step", "off"], ["ms", "131.25"]].map(|row| row.map(String::from).to_vec());
        assert_eq!(aligned(&cells.to_vec()), "a step     off\nms      131.25\n");
    }
}
