//! When each rank computed in a traced step, beside the schedule without waits.

use common::Choice;
use maud::{Markup, html};
use parallel::Task;

use super::drawing::{Drawing, LEFT, WIDTH, legend};
use super::html::{figure, number, of_runs, paragraph, table};
use super::ideal::{TaskTimes, Timed, ideal};
use super::run::Run;
use super::trace::{Kind, Operation, Trace};

/// Heights in units of the drawing.
const WORK: f64 = 26.0;
const TRANSFERS: f64 = 7.0;
const BETWEEN: f64 = 9.0;

/// Boxes that are no further apart than this share of the step become one.
const GAP: f64 = 1.0 / 2000.0;

/// The same if tasks run beside each other: a kernel often waits while one of the other task runs.
const GAP_BESIDE: f64 = 1.0 / 100.0;

/// The width from which on a task's box has room for a letter and a microbatch.
const LABELLED: f64 = 14.0;

/// The most ranks that are drawn.
const MOST: usize = 16;

/// Work of a rank without a break in between.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    kind: Kind,
    microbatch: Option<usize>,
    /// Milliseconds since the step's begin.
    start: f64,
    end: f64,
}

/// The last traced step of a rank.
struct RankStep {
    rank: usize,
    /// By start, without transfers.
    work: Vec<Span>,
    transfers: Vec<Span>,
}

impl RankStep {
    /// Whether forwards run beside backwards. Then they have a row of their own.
    fn overlaps(&self) -> bool {
        let time = |kinds: &[Kind]| {
            let spans = self.work.iter().filter(|span| kinds.contains(&span.kind));
            busy(spans.map(|span| (span.start, span.end)))
        };
        time(&[Kind::Forward]) + time(&[Kind::Backward]) > 1.02 * time(&[Kind::Forward, Kind::Backward])
    }

    /// The boxes that show the work, in a step of `end` milliseconds.
    fn boxes(&self, end: f64) -> Vec<Span> {
        let mut boxes = Vec::new();
        let gap = if self.overlaps() { end * GAP_BESIDE } else { 0.0 };
        self.work.iter().for_each(|span| add(&mut boxes, *span, gap));
        boxes
    }
}

pub(crate) fn timelines(runs: &[Run]) -> Markup {
    of_runs(runs, |at, run| run.traces.as_ref().map(|traces| of_traces(at, run, traces)).map_err(String::as_str))
}

fn of_traces(at: usize, run: &Run, traces: &[Trace]) -> Markup {
    let operations: Vec<(usize, &[Operation])> = traces.iter().map(|trace| (trace.rank, trace.last_step())).collect();
    let all = || operations.iter().flat_map(|(_, operations)| operations.iter());
    let begin = all().map(|operation| operation.start).fold(f64::INFINITY, f64::min);
    let end = all().map(|operation| operation.end).fold(f64::NEG_INFINITY, f64::max) - begin;
    if end.is_nan() || end <= 0.0 {
        return paragraph("The timeline has no operations.");
    }
    let steps: Vec<RankStep> =
        operations.iter().map(|(rank, operations)| rank_step(*rank, operations, begin, end * GAP)).collect();
    let microbatches = all().filter_map(|operation| operation.microbatch).max().map_or(1, |last| last + 1);
    let times: Vec<TaskTimes> = operations.iter().map(|(_, operations)| task_times(operations)).collect();
    // Tasks that overlap take longer than alone, so their times say nothing about an ideal.
    let planned = run
        .schedule(microbatches)
        .filter(|schedule| schedule.placement().stages() == times.len() && !schedule.overlaps());
    let planned = planned.and_then(|schedule| {
        let chunks = schedule.placement().chunks() as f64;
        let share = |times: &TaskTimes| match schedule.splits_backward() {
            true => *times,
            false => TaskTimes {
                forward: times.forward / chunks,
                backward: (times.backward + times.weights) / chunks,
                weights: 0.0,
            },
        };
        ideal(schedule, microbatches, &times.iter().map(share).collect::<Vec<_>>())
    });
    let ideal_end = planned.iter().flatten().flatten().map(|timed| timed.end).fold(0.0, f64::max);
    let caption = match &planned {
        Some(_) => format!(
            "The last traced step: {} ms. Below, each stage's ideal: the same tasks in the schedule's order, each as long as \
             the stage's median, without waits for transfers: {} ms.",
            number(end),
            number(ideal_end)
        ),
        None => {
            format!("The last traced step: {} ms. The thin row below a rank is its transfers.", number(end))
                + if steps.iter().any(RankStep::overlaps) {
                    " Forwards, which run beside backwards, are above."
                } else {
                    ""
                }
        }
    };
    let kinds: Vec<(&str, &str)> = Kind::WORDS.iter().map(|word| (*word, *word)).collect();
    let drawing = html! {
        (legend(&kinds))
        (drawing(&steps, planned.as_deref().unwrap_or_default(), end.max(ideal_end)))
    };
    let instead = numbers(&steps, planned.as_deref(), end);
    figure(&format!("timeline-{at}"), &drawing, &caption, &instead)
}

/// A rank's operations as spans. Those of one kind and microbatch that are at most `gap` milliseconds apart are one.
fn rank_step(rank: usize, operations: &[Operation], begin: f64, gap: f64) -> RankStep {
    let mut step = RankStep { rank, work: Vec::new(), transfers: Vec::new() };
    for operation in operations {
        let Operation { kind, microbatch, .. } = *operation;
        let span = Span { kind, microbatch, start: operation.start - begin, end: operation.end - begin };
        let spans = if kind == Kind::Transfer { &mut step.transfers } else { &mut step.work };
        add(spans, span, gap);
    }
    step
}

/// Adds a span, or makes the last span of the same kind and microbatch longer. Others may have begun since.
fn add(spans: &mut Vec<Span>, span: Span, gap: f64) {
    match spans.iter_mut().rfind(|last| (last.kind, last.microbatch) == (span.kind, span.microbatch)) {
        Some(last) if span.start <= last.end + gap => last.end = last.end.max(span.end),
        _ => spans.push(span),
    }
}

/// The median time that a microbatch's forward, backward and weight gradients take. Transfers and waits do not count.
fn task_times(operations: &[Operation]) -> TaskTimes {
    let median = |kind: Kind| {
        let microbatches =
            operations.iter().filter_map(|operation| operation.microbatch).max().map_or(0, |last| last + 1);
        let of = |microbatch: usize| {
            let its = operations
                .iter()
                .filter(|operation| (operation.kind, operation.microbatch) == (kind, Some(microbatch)));
            busy(its.map(|operation| (operation.start, operation.end)))
        };
        let mut times: Vec<f64> = (0..microbatches).map(of).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(0.0)
    };
    TaskTimes { forward: median(Kind::Forward), backward: median(Kind::Backward), weights: median(Kind::Weights) }
}

/// The time with at least one of the spans running. They come by start.
fn busy(spans: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut total, mut until) = (0.0, f64::NEG_INFINITY);
    for (start, end) in spans {
        total += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    total
}

fn drawing(steps: &[RankStep], planned: &[Vec<Timed>], end: f64) -> Markup {
    let x = |time: f64| LEFT + time / end * (WIDTH - LEFT);
    let mut drawing = Drawing::default();
    let mut y = 0.0;
    for step in steps.iter().take(MOST) {
        let forwards = y;
        y += if step.overlaps() { WORK } else { 0.0 };
        drawing.text((0.0, y + WORK / 2.0 + 4.0), "start", "", &format!("rank {}", step.rank));
        drawing.frame([LEFT, forwards, WIDTH - LEFT, y - forwards + WORK + TRANSFERS]);
        for span in step.boxes(end) {
            let row = if span.kind == Kind::Forward { forwards } else { y };
            span_box(&mut drawing, span, row, x, &format!("rank {}", step.rank));
        }
        for span in &step.transfers {
            let at = [x(span.start), y + WORK, (x(span.end) - x(span.start)).max(0.4), TRANSFERS];
            drawing.mark(at, Kind::Transfer.word(), &words(*span, &format!("rank {}", step.rank)));
        }
        y += WORK + TRANSFERS + BETWEEN;
    }
    for (stage, tasks) in planned.iter().enumerate() {
        drawing.text((0.0, y + WORK / 2.0 + 4.0), "start", "", &format!("ideal, stage {stage}"));
        drawing.frame([LEFT, y, WIDTH - LEFT, WORK]);
        for timed in tasks {
            let kind = match timed.task {
                Task::Forward { .. } => Kind::Forward,
                Task::Backward { .. } => Kind::Backward,
                Task::Weights { .. } => Kind::Weights,
            };
            let microbatch = Some(timed.task.microbatch());
            let span = Span { kind, microbatch, start: timed.start, end: timed.end };
            span_box(&mut drawing, span, y, x, &format!("ideal of stage {stage}"));
        }
        y += WORK + BETWEEN;
    }
    drawing.scale(y + 4.0, end, |time| format!("{} ms", number(time)));
    drawing.finish(y + 22.0, "Timeline of a step; left and right arrows walk through it")
}

/// A box of work. Kinds have different heights too, so that they are told apart without colour.
fn span_box(drawing: &mut Drawing, span: Span, y: f64, x: impl Fn(f64) -> f64, whose: &str) {
    let (left, width) = (x(span.start), (x(span.end) - x(span.start)).max(0.4));
    let (height, letter) = match span.kind {
        Kind::Forward => (WORK, "F"),
        Kind::Backward => (WORK * 0.8, "B"),
        Kind::Weights => (WORK * 0.65, "W"),
        Kind::Update => (WORK * 0.5, "U"),
        Kind::Transfer | Kind::Other => (WORK * 0.35, ""),
    };
    drawing.mark([left, y + WORK - height, width, height], span.kind.word(), &words(span, whose));
    if let (Some(microbatch), true) = (span.microbatch, width >= LABELLED && !letter.is_empty()) {
        drawing.text((left + width / 2.0, y + WORK - 5.0), "middle", "inside", &format!("{letter}{microbatch}"));
    }
}

fn words(span: Span, whose: &str) -> String {
    let microbatch = span.microbatch.map_or(String::new(), |microbatch| format!(" of microbatch {microbatch}"));
    let Span { kind, start, end, .. } = span;
    format!("{whose}: {}{microbatch}, {} ms from {} ms", kind.word(), number(end - start), number(start))
}

/// How the time of a step divides, rank by rank.
fn numbers(steps: &[RankStep], planned: Option<&[Vec<Timed>]>, end: f64) -> Markup {
    let row = |(at, step): (usize, &RankStep)| {
        let times = |spans: &[Span]| spans.iter().map(|span| (span.start, span.end)).collect::<Vec<_>>();
        let (work, mut all) = (times(&step.work), times(&[&step.work[..], &step.transfers].concat()));
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (computing, both) = (busy(work.into_iter()), busy(all.into_iter()));
        let share = |time: f64| format!("{:.1} %", 100.0 * time / end);
        let ideal = planned.and_then(|stages| stages.get(at)).map_or("–".into(), |tasks| {
            let last = tasks.last().map_or(0.0, |last| last.end);
            let idle = last - tasks.iter().map(|task| task.end - task.start).sum::<f64>();
            format!("{} ms, {} ms of them idle", number(last), number(idle))
        });
        vec![step.rank.to_string(), share(computing), share(both - computing), share(end - both), ideal]
    };
    let rows: Vec<Vec<String>> = steps.iter().enumerate().map(row).collect();
    table(
        &format!("A step of {} ms", number(end)),
        &["rank", "computes", "transfers alone", "nothing", "ideal end of the stage"],
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(kind: Kind, microbatch: usize, start: f64, end: f64) -> Operation {
        Operation { name: "x/y".into(), kind, microbatch: Some(microbatch), start, end }
    }

    #[test]
    fn operations_of_a_task_become_one_span_and_a_wait_between_them_stays() {
        let operations = [
            operation(Kind::Forward, 0, 10.0, 11.0),
            operation(Kind::Forward, 0, 11.01, 12.0),
            operation(Kind::Transfer, 0, 11.5, 14.0),
            operation(Kind::Forward, 0, 13.0, 14.0),
            operation(Kind::Backward, 0, 14.0, 15.0),
        ];
        let step = rank_step(3, &operations, 10.0, 0.1);
        let spans: Vec<(Kind, f64, f64)> = step.work.iter().map(|span| (span.kind, span.start, span.end)).collect();
        assert_eq!(spans, [(Kind::Forward, 0.0, 2.0), (Kind::Forward, 3.0, 4.0), (Kind::Backward, 4.0, 5.0)]);
        assert_eq!((step.transfers.len(), step.rank), (1, 3));
        let html = numbers(&[step], None, 5.0).into_string();
        assert!(html.contains("<td>80.0 %</td><td>20.0 %</td><td>0.0 %</td>"), "{html}");
    }

    #[test]
    fn a_forward_beside_a_backward_is_one_span_and_has_a_row_of_its_own() {
        let beside = |length: f64| -> Vec<Operation> {
            let begun = |index: usize| index as f64 * 10.0;
            (0..8)
                .flat_map(|index| {
                    let forward = operation(Kind::Forward, 1, begun(index) + length, begun(index) + 9.9);
                    [operation(Kind::Backward, 0, begun(index), begun(index) + 9.9), forward]
                })
                .collect()
        };
        let step = rank_step(0, &beside(4.0), 0.0, 5.0);
        assert_eq!(step.work.len(), 2, "{:?}", step.work);
        assert!(step.overlaps());
        // The forward's waits stay in the numbers, and are not drawn if they are short.
        let step = rank_step(0, &beside(4.0), 0.0, 1.0);
        assert_eq!((step.work.len(), step.boxes(80.0).len(), step.boxes(800.0).len()), (9, 9, 2));
        // A moment of both is no overlap, as between the last kernel of one task and the first of the next.
        let meet = [operation(Kind::Backward, 0, 0.0, 10.0), operation(Kind::Forward, 1, 9.9, 20.0)];
        assert!(!rank_step(0, &meet, 0.0, 0.1).overlaps());
    }

    #[test]
    fn the_time_of_a_task_is_the_median_over_microbatches_of_the_time_in_which_something_ran() {
        let mut operations = Vec::new();
        for (microbatch, length) in [(0, 1.0), (1, 3.0), (2, 50.0)] {
            let start = 100.0 * microbatch as f64;
            operations.push(operation(Kind::Forward, microbatch, start, start + length));
            operations.push(operation(Kind::Forward, microbatch, start, start + length / 2.0)); // on another stream
        }
        assert_eq!(task_times(&operations), TaskTimes { forward: 3.0, backward: 0.0, weights: 0.0 });
    }
}
