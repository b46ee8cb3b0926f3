//! The loads of experts: a map for each block, and the curve of the largest load.

use std::fmt::Write;

use common::escape::visible;
use common::format::counted;
use maud::{Markup, html};

use super::curves;
use super::drawing::legend;
use super::expert_loads::{ExpertLoads, Loads, spread};
use super::html::{figure, number, of_runs, paragraph, table};
use super::run::Run;

/// The most rows of a map. More experts are put in groups.
const MOST_ROWS: usize = 128;

/// The most cells of all maps of a run, so that the page stays small: with more, maps have fewer steps.
const MOST_CELLS: usize = 200_000;

/// The classes of colours: a quarter of the mean load each, from 0 to twice the mean and more.
const COLOURS: [(&str, &str); 9] = [
    ("load-0", "0"),
    ("load-1", "0.25"),
    ("load-2", "0.5"),
    ("load-3", "0.75"),
    ("load-4", "1"),
    ("load-5", "1.25"),
    ("load-6", "1.5"),
    ("load-7", "1.75"),
    ("load-8", "2 x mean and more"),
];

/// The class of the mean load: that of a map's background.
const MEAN: usize = 4;

/// The class of cells without a number, after the colours.
const UNKNOWN: usize = COLOURS.len();

/// The section; `None` if no run has experts.
pub(crate) fn experts(runs: &[Run]) -> Option<Markup> {
    if !runs.iter().any(has_experts) {
        return None;
    }
    let part = |at, run: &Run| match (has_experts(run), run.expert_loads.steps.is_empty()) {
        (false, _) => Err("There are no experts, or no step so far."),
        (true, true) => Err("There are no loads so far: steps with a line of their own (`--log-interval`) have them."),
        (true, false) => Ok(maps(at, &run.expert_loads)),
    };
    let hint = "The share of tokens that each expert takes. From left to right are steps, from top to bottom the experts of a \
                block; the colour is an expert's load over the mean load of its block.";
    Some(html! { (paragraph(hint)) (legend(&COLOURS)) (of_runs(runs, part)) (curves::of_experts(runs)) })
}

fn has_experts(run: &Run) -> bool {
    let has_imbalance = || run.metrics.rows.values().any(|row| row.expert_imbalance.is_some());
    !run.expert_loads.steps.is_empty() || has_imbalance()
}

/// The maps of a run.
fn maps(run: usize, loads: &ExpertLoads) -> Markup {
    let rows: usize = loads.blocks.values().map(|block| experts_of(block).min(MOST_ROWS)).sum();
    let at: Vec<usize> = (0..loads.steps.len()).collect();
    let columns: Vec<usize> = spread(&at, MOST_CELLS / rows.max(1)).into_iter().copied().collect();
    let (first, last) = (loads.steps.first().copied().unwrap_or(0), loads.steps.last().copied().unwrap_or(0));
    let one = |(block, all): (&u64, &Vec<Loads>)| {
        let of_columns: Vec<&Loads> = columns.iter().map(|at| &all[*at]).collect();
        let words = all.last().and_then(largest).map_or_else(
            || format!("no loads at step {last}"),
            |(expert, load)| format!("largest load at step {last}: {load:.2} x mean, expert {expert}"),
        );
        let label = format!("Loads of the experts of block {block}; {words}");
        html! {
            div {
                h3 { "Block " (block) }
                (map(&of_columns, &label))
                p class="ends" { span { "step " (first) } span { "step " (last) } }
                p { (words) }
            }
        }
    };
    let drawing = html! { div class="maps" { @for block in &loads.blocks { (one(block)) } } };
    let most = loads.blocks.values().map(|block| experts_of(block)).max().unwrap_or(0);
    let size = most.div_ceil(MOST_ROWS);
    let grouped = if size > 1 { format!(" A row is the mean of up to {size} experts.") } else { String::new() };
    let has_unknown = loads.blocks.values().any(|all| columns.iter().any(|at| !is_whole(&all[*at], experts_of(all))));
    let unknown = if has_unknown { " A blue cell has no number." } else { "" };
    let caption = format!(
        "{}, {} from step {first} to step {last}.{grouped}{unknown}",
        counted(loads.blocks.len(), "block"),
        counted(columns.len(), "step")
    );
    figure(&format!("experts-{run}"), &drawing, &caption, &numbers(loads, last))
}

/// The number of experts of a block.
fn experts_of(block: &[Loads]) -> usize {
    block.iter().map(Vec::len).max().unwrap_or(0)
}

fn is_whole(loads: &Loads, experts: usize) -> bool {
    loads.len() == experts && loads.iter().all(Option::is_some)
}

/// The expert with the largest load, and that load.
fn largest(loads: &Loads) -> Option<(usize, f64)> {
    let known = loads.iter().enumerate().filter_map(|(expert, load)| Some((expert, (*load)?)));
    known.reduce(|most, next| if next.1 > most.1 { next } else { most })
}

/// A map of the loads in each column's step.
fn map(columns: &[&Loads], label: &str) -> Markup {
    let experts = columns.iter().map(|loads| loads.len()).max().unwrap_or(0);
    let size = experts.div_ceil(MOST_ROWS).max(1);
    let (rows, width) = (experts.div_ceil(size), columns.len());
    let mut paths: [Path; UNKNOWN + 1] = Default::default();
    for row in 0..rows {
        let colours: Vec<usize> = columns.iter().map(|loads| colour(loads, row * size, size)).collect();
        let mut x = 0;
        for run in colours.chunk_by(|a, b| a == b) {
            if run[0] != MEAN {
                paths[run[0]].line(x, row, run.len());
            }
            x += run.len();
        }
    }
    let classes = COLOURS.iter().map(|(class, _)| *class).chain(["load-unknown"]);
    let (size, label) = (format!("0 -.5 {width} {rows}"), visible(label));
    let height = rows * (192 / rows.max(1)).clamp(2, 14);
    html! {
        svg class="loads" viewBox=(size) height=(height) preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (class, path) in classes.zip(paths).filter(|(_, path)| !path.data.is_empty()) {
                path class=(class) d=(path.data) {}
            }
        }
    }
}

/// The class of a row of `size` experts from the first one on: that of their mean load.
fn colour(loads: &Loads, first: usize, size: usize) -> usize {
    let known: Vec<f64> = loads.iter().skip(first).take(size).copied().flatten().collect();
    match known.len() {
        0 => UNKNOWN,
        count => ((known.iter().sum::<f64>() / count as f64 * 4.0).round() as usize).min(COLOURS.len() - 1),
    }
}

/// A path of horizontal lines, each as high as a row.
#[derive(Default)]
struct Path {
    data: String,
    /// The end of the last line.
    pen: (usize, usize),
}

impl Path {
    fn line(&mut self, x: usize, y: usize, width: usize) {
        let (right, down) = (x as i64 - self.pen.0 as i64, y as i64 - self.pen.1 as i64);
        let _ = write!(self.data, "m{right} {down}h{width}");
        self.pen = (x + width, y);
    }
}

/// The loads at the end in a table, by block.
fn numbers(loads: &ExpertLoads, last: u64) -> Markup {
    let row = |(block, all): (&u64, &Vec<Loads>)| {
        let end = all.last().cloned().unwrap_or_default();
        let (expert, most) =
            largest(&end).map_or(("–".into(), "–".into()), |(expert, load)| (expert.to_string(), number(load)));
        let least = end.iter().flatten().copied().reduce(f64::min).map_or("–".into(), number);
        let idle = end.iter().flatten().filter(|load| **load == 0.0).count().to_string();
        vec![block.to_string(), experts_of(all).to_string(), most, expert, least, idle]
    };
    let rows: Vec<Vec<String>> = loads.blocks.iter().map(row).collect();
    let head = ["block", "experts", "largest load over the mean", "its expert", "smallest", "experts without tokens"];
    table(&format!("Loads at step {last}"), &head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(columns: &[Loads]) -> String {
        map(&columns.iter().collect::<Vec<_>>(), "<map>").into_string()
    }

    #[test]
    fn a_map_has_a_line_for_each_run_of_equal_cells_and_none_for_mean_loads() {
        let svg = drawn(&[
            vec![Some(2.0), Some(0.0), Some(1.1)],
            vec![Some(3.5), Some(0.1), None],
            vec![Some(1.0), Some(1.5), Some(0.9)],
            vec![Some(9e99), Some(0.0)],
        ]);
        assert!(svg.contains("viewBox=\"0 -.5 4 3\"") && svg.contains("aria-label=\"&lt;map&gt;\""), "{svg}");
        let paths: Vec<&str> =
            svg.split_inclusive("</path>").filter_map(|part| part.get(part.find("<path")?..)).collect();
        assert_eq!(
            paths,
            [
                "<path class=\"load-0\" d=\"m0 1h2m1 0h1\"></path>",
                "<path class=\"load-6\" d=\"m2 1h1\"></path>",
                "<path class=\"load-8\" d=\"m0 0h2m1 0h1\"></path>",
                "<path class=\"load-unknown\" d=\"m1 2h1m1 0h1\"></path>",
            ]
        );
        drawn(&[]);
        drawn(&[vec![]]);
    }

    #[test]
    fn more_experts_than_rows_are_grouped() {
        let loads: Loads =
            (0..300).map(|expert| Some(if expert < 3 { f64::from(expert) * 2.0 } else { 1.0 })).collect();
        let svg = drawn(&[loads]);
        assert!(
            svg.contains("viewBox=\"0 -.5 1 100\"") && svg.contains("<path class=\"load-8\" d=\"m0 0h1\">"),
            "{svg}"
        );
    }

    #[test]
    fn maps_of_many_blocks_stay_small() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f64 / f64::from(1 << 23)
        };
        let mut step = || (0..128).map(|_| Some(random())).collect::<Loads>();
        let blocks = (0..48).map(|block| (block, (0..60).map(|_| step()).collect())).collect();
        let loads = ExpertLoads { steps: (1..=60).collect(), blocks };
        let html = maps(0, &loads).into_string();
        assert!(html.len() < 1_250_000, "{}", html.len());
        assert_eq!(html.matches("<svg").count(), 48);
        assert!(html.contains("48 blocks, 32 steps from step 1 to step 60."), "{html}");
    }
}
