//! The curves: numbers of each step, of all runs in one figure each.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde_json::{Value, json};
use trainer::config::ModelKind;

use super::html::{figure, number, table};
use super::metrics::Row;
use super::run::Run;

/// A number of each step.
struct Curve {
    id: String,
    title: String,
    caption: &'static str,
    presence: Presence,
    number: Number,
}

/// The number of a step.
enum Number {
    Of(fn(&Row) -> Option<f64>),
    /// The term of the loss with that name.
    Term(String),
}

/// The steps that have the number of a curve.
#[derive(Clone, Copy, PartialEq)]
enum Presence {
    EachStep,
    /// Some, so that a missing one is no gap.
    Sparse,
}

use Presence::{EachStep, Sparse};

fn curve(id: &str, title: &str, presence: Presence, number: fn(&Row) -> Option<f64>, caption: &'static str) -> Curve {
    Curve { id: id.into(), title: title.into(), caption, presence, number: Number::Of(number) }
}

/// The curves of all runs, and one for each term of the loss that a run has.
#[rustfmt::skip]
fn of_all(runs: &[Run]) -> Vec<Curve> {
    let mut curves = vec![
        curve("loss", "Loss", EachStep, |row| row.loss, "Mean loss over the global batch, in nats."),
        curve("validation", "Validation loss", Sparse, |row| row.validation_loss,
              "Mean loss over the validation data, in nats."),
        curve("throughput", "Throughput", EachStep, |row| row.tokens_per_s, "Tokens (or rows) per second over all ranks."),
        curve("memory", "Memory", EachStep, |row| row.memory_bytes.map(|bytes| bytes / f64::from(1 << 20)),
              "Planned device memory of rank 0, in MiB."),
        curve("lr", "Learning rate", EachStep, |row| row.lr, "Learning rate of the step."),
        curve("norm", "Gradient norm", EachStep, |row| row.grad_norm, "Norm of all gradients before clipping."),
    ];
    let rows = runs.iter().flat_map(|run| run.metrics.rows.values());
    let terms: BTreeSet<&String> = rows.flat_map(|row| row.terms.keys()).collect();
    curves.extend(terms.into_iter().map(|name| {
        let id = name.replace('_', "-");
        let caption = "A term of the loss: its mean over the global batch, in nats, summed over layers.";
        Curve { title: id.clone(), id, caption, presence: EachStep, number: Number::Term(name.clone()) }
    }));
    curves
}

/// The curves that the given runs have in the section about experts.
#[rustfmt::skip]
fn about_experts(runs: &[Run]) -> Vec<Curve> {
    let curves = [
        curve("expert-imbalance", "Largest load of an expert", EachStep, |row| row.expert_imbalance,
              "The largest load of an expert over the mean load of its block, in the block with the largest such number. It is 1 \
               if all experts take the same number of tokens."),
        curve("dropped-choices", "Dropped choices", EachStep, |row| row.dropped_choices,
              "Choices of experts that were dropped because the experts had as many as their capacity, over all blocks."),
    ];
    let has = |curve: &Curve| runs.iter().any(|run| points(curve, run).iter().any(|(_, value)| value.is_some()));
    curves.into_iter().filter(has).collect()
}

/// A curve has at most twice so many points. A longer one is cut into so many parts. The lowest and the highest point
/// of each part are drawn.
const PARTS: usize = 1000;

/// Rows of the table that stands for a figure.
const SAMPLES: usize = 10;

type Point = (u64, Option<f64>);

/// A point with a value.
type Known = (u64, f64);

fn points(curve: &Curve, run: &Run) -> Vec<Point> {
    let number = |row: &Row| match &curve.number {
        Number::Of(number) => number(row),
        Number::Term(name) => row.terms.get(name).copied(),
    };
    let all = run.metrics.rows.values().map(|row| (row.step, number(row)));
    all.filter(|(_, value)| curve.presence != Sparse || value.is_some()).collect()
}

pub(crate) fn curves(runs: &[Run]) -> Markup {
    html! {
        p {
            "Point at a step to read its numbers, or focus a figure and use the arrow keys. Drag over a range to see it "
            "larger; a double click or Escape shows all. A click on a run in a legend hides it. Smoothed values are means "
            "in which later steps count more, and the values themselves are drawn behind them. Validation losses stay as they "
            "are. Only curves above 0 have a logarithmic axis."
        }
        p class="controls" {
            label {
                "Along "
                select id="along" {
                    @for (value, name) in [("step", "steps"), ("tokens", "tokens"), ("time", "time")] {
                        option value=(value) { (name) }
                    }
                }
            }
            " " label { "Smooth " input type="range" id="smooth" min="0" max="0.99" step="0.01" value="0"; }
            " " label { input type="checkbox" id="log"; " Logarithmic" }
        }
        (figures(&of_all(runs), runs))
    }
}

/// The curves about loads of experts; empty if no run has any.
pub(crate) fn of_experts(runs: &[Run]) -> Markup {
    figures(&about_experts(runs), runs)
}

fn figures(curves: &[Curve], runs: &[Run]) -> Markup {
    let one = |curve: &Curve| {
        let Curve { id, title, caption, presence, .. } = curve;
        let label = format!("{title} by step; left and right arrows walk through the steps");
        let drawing = html! {
            h3 { (title) }
            div class="curve" data-curve=(id) data-sparse[*presence == Sparse] role="group" tabindex="0" aria-label=(label) {}
        };
        figure(id, &drawing, caption, &numbers(curve, runs))
    };
    html! { div class="grid" { @for curve in curves { (one(curve)) } } }
}

/// The curve in a table: its lowest and highest value, and some steps.
fn numbers(curve: &Curve, runs: &[Run]) -> Markup {
    let known = |run: &Run| -> Vec<Known> {
        points(curve, run).into_iter().filter_map(|(step, value)| Some((step, value?))).collect()
    };
    let known: Vec<Vec<Known>> = runs.iter().map(known).collect();
    let cell =
        |point: Option<&Known>| point.map_or("–".into(), |(step, value)| format!("{} (step {step})", number(*value)));
    let by_value = |a: &&Known, b: &&Known| a.1.total_cmp(&b.1);
    let row = |name: &str, of: &dyn Fn(&Vec<Known>) -> String| -> Vec<String> {
        std::iter::once(name.to_string()).chain(known.iter().map(of)).collect()
    };
    let mut rows = vec![
        row("lowest", &|points| cell(points.iter().min_by(by_value))),
        row("highest", &|points| cell(points.iter().max_by(by_value))),
    ];
    let last = runs.iter().map(Run::steps).max().unwrap_or(0);
    let mut steps: Vec<u64> =
        (1..=SAMPLES as u64).map(|part| last * part / SAMPLES as u64).filter(|step| *step > 0).collect();
    steps.dedup();
    for step in steps {
        let until = |points: &Vec<Known>| cell(points[..points.partition_point(|(at, _)| *at <= step)].last());
        rows.push(row(&format!("step {step}, or the last before it"), &until));
    }
    let head: Vec<&str> = std::iter::once("").chain(runs.iter().map(|run| run.name.as_str())).collect();
    table(&curve.title, &head, &rows)
}

/// The data for the page's script: the names of the runs, and for each curve and run the steps and the values, with the
/// tokens and the seconds of training up to each step.
pub(crate) fn data(runs: &[Run]) -> Value {
    let places: Vec<BTreeMap<u64, Place>> = runs.iter().map(places).collect();
    let series = |curve: &Curve, (run, places): (&Run, &BTreeMap<u64, Place>)| {
        let (steps, values): (Vec<u64>, Vec<Option<f64>>) = thinned(points(curve, run)).into_iter().unzip();
        let place = |step: &u64| places.get(step).copied().unwrap_or_default();
        let (tokens, seconds): (Vec<Option<f64>>, Vec<Option<f64>>) = steps.iter().map(place).unzip();
        json!([steps, values, tokens, seconds])
    };
    let all = of_all(runs).into_iter().chain(about_experts(runs));
    let of_curve = |curve: Curve| {
        let of_runs = runs.iter().zip(&places).map(|run| series(&curve, run)).collect();
        (curve.id, of_runs)
    };
    let curves: serde_json::Map<String, Value> = all.map(of_curve).collect();
    json!({ "runs": runs.iter().map(|run| &run.name).collect::<Vec<_>>(), "curves": curves })
}

/// The tokens and the seconds of training up to a step, as far as known.
type Place = (Option<f64>, Option<f64>);

/// The place of each step of a run. Time between two starts of the run does not count.
fn places(run: &Run) -> BTreeMap<u64, Place> {
    const LENGTH: &str = "model.seq_length";
    let config = run.config.as_ref().filter(|config| config.model.kind == ModelKind::Gpt);
    // The configuration is that of the last steps.
    let first = run.metrics.rows.values().find_map(|row| row.changed_settings.get(LENGTH)?.was.as_ref()?.as_integer());
    let mut length = config.map(|config| first.map_or(config.model.seq_length as f64, |first| first as f64));
    let (mut samples, mut tokens, mut seconds) = (0.0, 0.0, Some(0.0));
    let place = |row: &Row| {
        let changed = row.changed_settings.get(LENGTH).and_then(|change| change.now.as_ref()?.as_integer());
        length = length.map(|length| changed.map_or(length, |changed| changed as f64));
        let known = row.samples.zip(length).map(|(all, length)| {
            tokens += (all - std::mem::replace(&mut samples, all)) * row.seq_length.unwrap_or(length);
            tokens
        });
        seconds = seconds.zip(row.step_ms).map(|(seconds, time)| seconds + time / 1e3);
        (row.step, (known, seconds))
    };
    run.metrics.rows.values().map(place).collect()
}

/// At most `2 * PARTS` points, with the lowest and the highest of each part of the steps.
fn thinned(points: Vec<Point>) -> Vec<Point> {
    if points.len() <= 2 * PARTS {
        return points;
    }
    let mut few = Vec::new();
    for part in points.chunks(points.len().div_ceil(PARTS)) {
        let known = || part.iter().filter_map(|(step, value)| Some((*step, (*value)?)));
        let by_value = |a: &(u64, f64), b: &(u64, f64)| a.1.total_cmp(&b.1);
        match (known().min_by(by_value), known().max_by(by_value)) {
            (Some(low), Some(high)) => {
                let mut both = [low, high];
                both.sort_by_key(|(step, _)| *step);
                few.extend(both.map(|(step, value)| (step, Some(value))));
                few.dedup();
            }
            _ => few.push((part[0].0, None)),
        }
    }
    few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_peaks_and_its_gaps() {
        let value = |step: u64| match step {
            77_777 => Some(9.0),
            33_333 => Some(-9.0),
            50_000..60_000 => None,
            _ => Some(0.0),
        };
        let few = thinned((1..=100_000).map(|step| (step, value(step))).collect());
        assert!(few.len() <= 2 * PARTS && few.is_sorted_by_key(|(step, _)| *step), "{}", few.len());
        assert!(few.contains(&(77_777, Some(9.0))) && few.contains(&(33_333, Some(-9.0))));
        assert!(few.iter().any(|(step, value)| (50_000..60_000).contains(step) && value.is_none()));
        let short: Vec<Point> = (1..=2000).map(|step| (step, value(step))).collect();
        assert_eq!(thinned(short.clone()), short);
    }
}
