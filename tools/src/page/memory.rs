//! The memory plan of a step: the bytes of an area that each buffer has, and their time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use common::Choice;
use common::format::{bytes, counted};
use graph_manager::{BufferUse, StepReport};
use maud::{Markup, html};

use super::drawing::{Drawing, LEFT, WIDTH, legend};
use super::html::{figure, of_runs, paragraph, table};
use super::run::{RankGraphs, Run};
use super::trace::Kind;
use trainer::report::replay_picture::largest_training_step;

/// The number of a rank's largest buffers that are drawn at most.
const MOST: usize = 3000;

/// Height of all areas together, in units of the drawing, and the least of one area.
const AREAS: f64 = 300.0;
const LEAST: f64 = 18.0;

/// Height of the row with the names of the regions that run.
const ROW: f64 = 14.0;

/// Buffers in the table of a rank.
const LISTED: usize = 15;

pub(crate) fn memory(runs: &[Run]) -> Markup {
    let kinds = [Kind::Forward, Kind::Backward, Kind::Weights, Kind::Update, Kind::Other];
    html! {
        p {
            "Activations and scratch, planned from a recording of the step. From left to right the step's operations in the "
            "order in which they are submitted; from top to bottom the bytes of each area. A box is a buffer, from its "
            "first to its last use."
        }
        (legend(&kinds.map(|kind| (kind.word(), kind.word()))))
        (of_runs(runs, |at, run| {
            let ranks = run.graphs.as_ref().map_err(String::as_str)?;
            Ok(html! { @for rank in ranks { (of_rank(at, rank)) } })
        }))
    }
}

fn of_rank(run: usize, rank: &RankGraphs) -> Markup {
    let Some(step) = largest_training_step(&rank.report) else {
        return paragraph(&format!("Rank {} has recorded no training step.", rank.rank));
    };
    let caption = format!(
        "Rank {}, stage {}: {} in a step of {}. A colour is the kind of region that takes the buffer.",
        rank.rank,
        rank.pipeline,
        counted(step.buffers.len(), "buffer"),
        counted(step.microbatches, "microbatch")
    );
    figure(&format!("memory-{run}-{}", rank.rank), &drawing(rank, step), &caption, &numbers(rank, step))
}

fn drawing(rank: &RankGraphs, step: &StepReport) -> Markup {
    let last_use = step.buffers.iter().map(|buffer| buffer.last + 1);
    let end = step.order.iter().map(|launch| launch.end).chain(last_use).max().unwrap_or(1).max(1) as f64;
    let x = |position: usize| LEFT + position as f64 / end * (WIDTH - LEFT);
    let mut drawing = Drawing::default();
    drawing.text((0.0, ROW - 3.0), "start", "", "runs");
    for launch in step.order.iter().filter(|launch| launch.end > launch.start) {
        let at = [x(launch.start), 0.0, x(launch.end) - x(launch.start), ROW];
        drawing.mark(at, Kind::of_region(&launch.region).word(), &launch.region);
    }
    let used: BTreeMap<&str, usize> = rank.report.memory.iter().map(|area| (&*area.area, area.bytes)).collect();
    let all = used.values().sum::<usize>().max(1) as f64;
    let mut areas: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    let mut y = ROW + 8.0;
    for (area, size) in &used {
        let height = (*size as f64 / all * AREAS).max(LEAST);
        areas.insert(area, (y, height / (*size).max(1) as f64));
        drawing.frame([LEFT, y, WIDTH - LEFT, height]);
        drawing.text((0.0, y + 12.0), "start", "", area);
        if height >= 2.0 * LEAST {
            drawing.text((0.0, y + 26.0), "start", "small", &bytes(*size));
        }
        y += height + 6.0;
    }
    let mut largest: Vec<&BufferUse> = step.buffers.iter().collect();
    largest.sort_by_key(|buffer| Reverse(buffer.bytes));
    largest.truncate(MOST);
    // In the order of the step, as the keyboard walks through them.
    largest.sort_by_key(|buffer| (buffer.first, buffer.offset));
    for buffer in largest {
        let Some((top, scale)) = areas.get(&*buffer.area) else { continue };
        let height = (buffer.bytes as f64 * scale).max(0.5);
        let at = [x(buffer.first), top + buffer.offset as f64 * scale, x(buffer.last + 1) - x(buffer.first), height];
        drawing.mark(at, Kind::of_region(&buffer.region).word(), &words(buffer, step));
    }
    drawing.scale(y + 4.0, end, |position| format!("{position:.0}"));
    drawing.finish(y + 22.0, &format!("Memory plan of rank {}; left and right arrows walk through it", rank.rank))
}

/// A buffer in words.
fn words(buffer: &BufferUse, step: &StepReport) -> String {
    let BufferUse { name, region, area, offset, bytes: size, .. } = buffer;
    let (first, last) = (running(step, buffer.first), running(step, buffer.last));
    format!("{name} of {region}: {} at byte {offset} of {area}, from {first} to {last}", bytes(*size))
}

/// The region that runs at a position of the step.
fn running(step: &StepReport, position: usize) -> &str {
    let at = step.order.iter().find(|launch| (launch.start..launch.end).contains(&position));
    at.map_or("the end of the step", |launch| &launch.region)
}

/// The position with the most bytes in use, and the number of bytes.
fn peak(buffers: &[BufferUse]) -> (usize, usize) {
    let mut changes: Vec<(usize, i64)> = buffers
        .iter()
        .flat_map(|buffer| [(buffer.first, buffer.bytes as i64), (buffer.last + 1, -(buffer.bytes as i64))])
        .collect();
    changes.sort();
    let (mut now, mut most) = (0, (0, 0));
    // Ends sort before begins at the same position.
    for (position, change) in changes {
        now += change;
        if now > most.1 {
            most = (position, now);
        }
    }
    (most.0, most.1 as usize)
}

fn numbers(rank: &RankGraphs, step: &StepReport) -> Markup {
    let areas: Vec<Vec<String>> =
        rank.report.memory.iter().map(|area| vec![area.area.clone(), bytes(area.bytes)]).collect();
    let (at, most) = peak(&step.buffers);
    let mut there: Vec<&BufferUse> =
        step.buffers.iter().filter(|buffer| (buffer.first..=buffer.last).contains(&at)).collect();
    there.sort_by_key(|buffer| (Reverse(buffer.bytes), buffer.first));
    let row = |buffer: &&BufferUse| {
        vec![
            format!("{} of {}", buffer.name, buffer.region),
            bytes(buffer.bytes),
            buffer.area.clone(),
            running(step, buffer.first).to_string(),
            running(step, buffer.last).to_string(),
        ]
    };
    let listed: Vec<Vec<String>> = there.iter().take(LISTED).map(row).collect();
    let caption = format!(
        "The largest of {} in use at the peak, {} during {}",
        counted(there.len(), "buffer"),
        bytes(most),
        running(step, at)
    );
    html! {
        (table("Areas", &["area", "bytes"], &areas))
        (table(&caption, &["buffer", "bytes", "area", "first used in", "last used in"], &listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_where_most_bytes_are_in_use_and_a_freed_buffer_no_longer_counts() {
        let buffer = |bytes, first, last| BufferUse {
            name: "x".into(),
            region: "forward".into(),
            area: "step".into(),
            offset: 0,
            bytes,
            first,
            last,
        };
        assert_eq!(peak(&[buffer(4, 0, 9), buffer(8, 1, 3), buffer(8, 4, 6), buffer(2, 6, 6)]), (6, 14));
        assert_eq!(peak(&[]), (0, 0));
    }
}
