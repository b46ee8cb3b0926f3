//! A picture of the order of replays on the stages of a pipeline.

use common::escape::visible;
use common::format::counted;
use graph_manager::{Launch, Report, StepReport};
use maud::{Markup, PreEscaped, html};

/// Sizes in pixels.
const BOX: (usize, usize) = (30, 34);
const EAGER_WIDTH: usize = 8;
/// For a region of several layers or of none. Its box shows the numbers of its layers, or its name.
const NAMED_WIDTH: usize = 60;
const LINE: usize = 1440;
const MARGIN: usize = 12;

/// Fill by microbatch, for forwards and for backwards.
const FORWARD: [&str; 4] = ["#9ecae1", "#6baed6", "#4292c6", "#2171b5"];
const BACKWARD: [&str; 4] = ["#fdd0a2", "#fdae6b", "#fd8d3c", "#e6550d"];
const OTHER: &str = "#bdbdbd";

/// A picture with one part a stage, each made by [`stage_part`].
pub fn replay_picture(parts: &[String]) -> String {
    let mut stages = Vec::new();
    let mut y = 48;
    for part in parts {
        let (height, body) = part.split_once('\n').unwrap_or(("0", ""));
        stages.push(html! { g transform={ "translate(" (MARGIN) "," (y) ")" } { (PreEscaped(body)) } });
        y += height.parse::<usize>().unwrap_or(0) + 18;
    }
    let legend = "A training step, left to right, line after line. Blue: forward; orange: backward; grey: the rest. A box is \
                  a graph launch: layer above, microbatch below, darker for later microbatches. A thin box runs eagerly.";
    let width = LINE + 2 * MARGIN;
    let size = format!("0 0 {width} {y}");
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(y) viewBox=(size)
            font-family="sans-serif" font-size="11" {
            rect width="100%" height="100%" class="background" fill="white" {}
            text x=(MARGIN) y="26" font-size="12" { (legend) }
            @for stage in &stages { (stage) }
        }
    };
    svg.into_string()
}

/// The training step with most microbatches. Among steps of several lengths, one with graphs, and of these the longest.
pub fn largest_training_step(report: &Report) -> Option<&StepReport> {
    let of_training = report.steps.iter().filter(|step| step.mode.starts_with("Train"));
    let has_graphs = |step: &StepReport| step.order.iter().any(|launch| launch.graph.is_some());
    of_training.max_by_key(|step| (has_graphs(step), step.microbatches, step.mode == "Train"))
}

/// The part of one stage: its height, and on the next lines its drawing.
pub fn stage_part(title: &str, report: &Report) -> String {
    let largest = largest_training_step(report);
    let launches: &[Launch] = largest.map_or(&[], |step| &step.order);
    let graphs = launches.iter().filter_map(|launch| launch.graph).collect::<std::collections::BTreeSet<_>>().len();
    let count = launches.iter().filter(|launch| launch.graph.is_some()).count();
    let title = format!("{title}: {}, launched {} a step", counted(graphs, "graph"), counted(count, "time"));
    let mut boxes = Vec::new();
    let (mut x, mut y) = (0, 20);
    for launch in launches {
        let width = match (launch.graph, number_after(&launch.region, "layer ")) {
            (None, _) => EAGER_WIDTH,
            (Some(_), Some(_)) => BOX.0,
            (Some(_), None) => NAMED_WIDTH,
        };
        if x + width > LINE {
            (x, y) = (0, y + BOX.1 + 6);
        }
        boxes.push(drawn(launch, report, (x, y), width));
        x += width + 2;
    }
    let body = html! {
        text y="12" font-size="13" font-weight="bold" { (visible(&title)) }
        @for one in &boxes { (one) }
    };
    format!("{}\n{}", y + BOX.1, body.into_string())
}

fn drawn(launch: &Launch, report: &Report, (x, y): (usize, usize), width: usize) -> Markup {
    let shade = launch.microbatch.unwrap_or(0) % FORWARD.len();
    let fill = match launch.region.split(' ').next() {
        Some("forward") => FORWARD[shade],
        Some("backward" | "weights") => BACKWARD[shade],
        _ => OTHER,
    };
    let graph = launch.graph.and_then(|graph| report.graphs.get(graph));
    let slot = graph.and_then(|graph| graph.slot).map_or(String::new(), |slot| format!(", slot {slot}"));
    let how = graph.map_or("runs eagerly".into(), |graph| {
        format!("graph `{}`, {}{slot}", graph.name, counted(graph.nodes.len(), "node"))
    });
    let fill = if graph.is_some() { fill } else { "white" };
    let chunk = || launch.region.split_once("layers ")?.1.split(',').next();
    let layer = number_after(&launch.region, "layer ").or_else(chunk).unwrap_or(&launch.region);
    let microbatch = launch.microbatch.map_or(String::new(), |m| format!("m{m}"));
    let texts = graph.map(|_| [(layer, y + 14), (&microbatch, y + 28)]);
    html! {
        g {
            title { (visible(&launch.region)) ": " (visible(&how)) }
            rect x=(x) y=(y) width=(width) height=(BOX.1) fill=(fill) stroke="#636363" stroke-width="0.6" {}
            @for (text, y) in texts.into_iter().flatten() {
                text x=(x + width / 2) y=(y) text-anchor="middle" { (visible(text)) }
            }
        }
    }
}

/// The digits that follow `word`.
fn number_after<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let rest = &text[text.find(word)? + word.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some(&rest[..end])
}
