//! The screen of `trainer top`: a line of numbers, curves, ranks and events. It fits 80 columns and 24 lines.

use std::time::{Duration, SystemTime};

use common::Choice;
use common::escape::one_line;
use common::format::{bytes, counted, duration};
use launch::watch::ranks_file::{RankRow, RankState};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Row, Sparkline, Table};

use crate::page::events::{Event, EventKind};
use crate::page::live::{Live, age};
use crate::page::metrics::Row as Step;

/// A rank that sends nothing for this long is shown as silent.
const SILENT: Duration = Duration::from_secs(5);

/// Draws the run in the state at `now`.
pub(super) fn draw(frame: &mut Frame<'_>, live: &Live, now: SystemTime) {
    let rows = live.ranks.as_ref().map_or(1, |(rows, _)| rows.len().min(4)) as u16;
    let [head, curves, ranks, events, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(8),
        Constraint::Length(rows + 2),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(live, now)), head);
    let [loss, others] = Layout::horizontal([Constraint::Percentage(55), Constraint::Percentage(45)]).areas(curves);
    draw_loss(frame, live, loss);
    draw_sparklines(frame, live, others);
    draw_ranks(frame, live, now, ranks);
    draw_events(frame, &live.log.events, events);
    frame.render_widget(Paragraph::new(Line::from("q quits").style(dim())), foot);
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn bold(text: String) -> Span<'static> {
    Span::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

/// Two lines: the run, its progress and its last step's age; and its numbers.
fn headline(live: &Live, now: SystemTime) -> Vec<Line<'static>> {
    let last = live.metrics.rows.values().next_back();
    let step = live.metrics.last_step();
    let of = live.steps.map_or(String::new(), |steps| format!("/{steps}"));
    let state = match live.last_step.map(|at| age(at, now)) {
        _ if live.log.is_done => "done".to_string(),
        Some(since) => format!("last step {} s ago", since.as_secs()),
        None => "no step so far".to_string(),
    };
    let first = Line::from(vec![
        bold(one_line(&live.name())),
        format!(
            "  step {step}{of}  {state}  {}{}{}",
            counted(live.rank_count(), "rank"),
            left(live),
            gpus(&live.gpu_loads)
        )
        .into(),
    ]);
    let Some(last) = last else { return vec![first] };
    let number = |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or("–".into(), show);
    let validation = live.metrics.rows.values().rev().find_map(|row| row.validation_loss);
    let second = format!(
        "loss {}  val {}  norm {}  lr {}  {} tok/s  memory {}",
        number(last.loss, &|loss| format!("{loss:.4}")),
        number(validation, &|loss| format!("{loss:.4}")),
        number(last.grad_norm, &|norm| format!("{norm:.3}")),
        number(last.lr, &|lr| format!("{lr:.2e}")),
        number(last.tokens_per_s, &|speed| format!("{speed:.0}")),
        number(last.memory_bytes, &|size| bytes(size as usize)),
    );
    vec![first, Line::from(second)]
}

/// The time left, after a space; empty if unknown.
fn left(live: &Live) -> String {
    live.time_left().map_or(String::new(), |time| format!("  {} left", duration(time.as_secs_f64())))
}

/// The loads of this machine's GPUs, after a space; empty without GPUs.
fn gpus(loads: &[u32]) -> String {
    let loads: Vec<String> = loads.iter().map(u32::to_string).collect();
    if loads.is_empty() { String::new() } else { format!("  GPU {} %", loads.join(" ")) }
}

/// The values of a number of all steps, by step.
fn values(live: &Live, of: impl Fn(&Step) -> Option<f64>) -> Vec<(f64, f64)> {
    let known = live.metrics.rows.values().filter_map(|row| Some((row.step as f64, of(row)?)));
    known.filter(|(_, value)| value.is_finite()).collect()
}

/// At most `most` points: the means of as many equal parts.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let mean = |part: &[(f64, f64)]| {
        let count = part.len() as f64;
        let sum = part.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(points.len().div_ceil(most.max(1)).max(1)).map(mean).collect()
}

fn draw_loss(frame: &mut Frame<'_>, live: &Live, area: Rect) {
    let most = 2 * area.width as usize;
    let loss = thinned(&values(live, |row| row.loss), most);
    let validation = values(live, |row| row.validation_loss);
    let all = || loss.iter().chain(&validation);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
    };
    let block = Block::bordered().title("loss (line), validation (dots)");
    if loss.is_empty() {
        frame.render_widget(Paragraph::new("no step so far").block(block), area);
        return;
    }
    let [first, last] = bounds(&mut all().map(|point| point.0));
    let [low, high] = bounds(&mut all().map(|point| point.1));
    let room = ((high - low) * 0.05).max(1e-3);
    let line = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).data(&loss);
    let dots = Dataset::default().marker(Marker::Dot).graph_type(GraphType::Scatter).data(&validation);
    let chart = Chart::new(vec![line.style(Style::new().fg(Color::Cyan)), dots.style(Style::new().fg(Color::Yellow))])
        .block(block)
        .x_axis(Axis::default().bounds([first, last.max(first + 1.0)]).labels([format!("{first}"), format!("{last}")]))
        .y_axis(Axis::default().bounds([low - room, high + room]).labels([
            format!("{low:.3}"),
            format!("{:.3}", (low + high) / 2.0),
            format!("{high:.3}"),
        ]));
    frame.render_widget(chart, area);
}

/// Each number's last steps as bars, from the number's lowest value to the highest.
fn draw_sparklines(frame: &mut Frame<'_>, live: &Live, area: Rect) {
    type Number = fn(&Step) -> Option<f64>;
    let mut all: Vec<(&str, Number)> = vec![
        ("tokens/s", |row| row.tokens_per_s),
        ("gradient norm", |row| row.grad_norm),
        ("learning rate", |row| row.lr),
        ("memory", |row| row.memory_bytes),
    ];
    if live.metrics.rows.values().any(|row| row.expert_imbalance.is_some()) {
        all.push(("largest load over mean", |row| row.expert_imbalance));
    }
    let parts = Layout::vertical(vec![Constraint::Fill(1); all.len()]).split(area);
    for ((name, number), area) in all.into_iter().zip(parts.iter().copied()) {
        let points = values(live, number);
        let points = thinned(&points, area.width as usize);
        let low = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let high = points.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
        // The lowest value has a bar too.
        let bar = |value: f64| if high > low { 1 + ((value - low) / (high - low) * 99.0) as u64 } else { 50 };
        let bars: Vec<u64> = points.iter().map(|point| bar(point.1)).collect();
        let range = if points.is_empty() { "–".into() } else { format!("{} to {}", short(low), short(high)) };
        let title = Line::from(vec![format!("{name} ").into(), Span::styled(range, dim())]);
        let line = Sparkline::default().data(&bars).max(100).style(Style::new().fg(Color::Green));
        frame.render_widget(line.block(Block::new().title(title)), area);
    }
}

/// A number of about four digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-2..1e5).contains(&size) => format!("{value:.2e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.3}"),
    }
}

fn draw_ranks(frame: &mut Frame<'_>, live: &Live, now: SystemTime, area: Rect) {
    let Some((rows, written)) = &live.ranks else {
        let text = "One rank, or a run without heartbeats: there is no state of ranks.";
        frame.render_widget(Paragraph::new(text).block(Block::bordered().title("ranks")), area);
        return;
    };
    let since = age(*written, now);
    let is_old = since > SILENT && !live.log.is_done;
    let troubled = rows.iter().filter(|row| trouble(row) > 0).count();
    let title = match (is_old, troubled) {
        (true, _) => format!("ranks: no heartbeat for {} s", since.as_secs()),
        (false, 0) => format!("ranks: {}", counted(rows.len(), "rank")),
        (false, troubled) => format!("ranks: {troubled} of {} silent or failed", rows.len()),
    };
    let colour = if is_old || troubled > 0 { Color::Red } else { Color::Reset };
    let mut sorted: Vec<&RankRow> = rows.iter().collect();
    sorted.sort_by_key(|row| (std::cmp::Reverse(trouble(row)), row.rank));
    let cells = |row: &&RankRow| {
        let doing = row.doing.clone().unwrap_or_default();
        let step = row.step.map_or(String::new(), |step| format!("step {}", step + 1));
        let silent = Duration::from_millis(row.silent_ms) + if is_old { since } else { Duration::ZERO };
        let cells = [
            format!("rank {}", row.rank),
            one_line(&row.host.clone().unwrap_or_default()),
            row.state.to_string(),
            step,
            format!("{doing}{}", row.region.as_ref().map_or(String::new(), |region| format!(", {region}"))),
            format!("{:.1} s", silent.as_secs_f64()),
        ];
        let style = if trouble(row) > 0 { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(cells).style(style)
    };
    let widths = [
        Constraint::Length(9),
        Constraint::Length(12),
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Min(20),
        Constraint::Length(7),
    ];
    let block = Block::bordered().title(Span::styled(title, Style::new().fg(colour)));
    frame.render_widget(Table::new(sorted.iter().map(cells), widths).block(block), area);
}

/// How much a rank is in trouble; 0 for a rank without trouble.
fn trouble(row: &RankRow) -> u8 {
    match row.state {
        RankState::Failed => 2,
        RankState::Alive if Duration::from_millis(row.silent_ms) > SILENT => 1,
        _ => 0,
    }
}

/// The last events, the newest at the bottom.
fn draw_events(frame: &mut Frame<'_>, events: &[Event], area: Rect) {
    let room = area.height.saturating_sub(2) as usize;
    let line = |event: &Event| {
        let time = event.time.get(11..19).unwrap_or(&event.time);
        let colour = match event.kind {
            EventKind::Fault => Color::Red,
            EventKind::Warning | EventKind::SkippedStep => Color::Yellow,
            _ => Color::Reset,
        };
        let text = event.text.lines().next().unwrap_or_default();
        Line::from(vec![
            Span::styled(format!("{time} "), dim()),
            Span::styled(format!("{} ", event.kind.word()), Style::new().fg(colour)),
            format!("rank {}: {}", event.rank, one_line(text)).into(),
        ])
    };
    let lines: Vec<Line<'_>> = events[events.len().saturating_sub(room)..].iter().map(line).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("events (UTC)")), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    /// The screen for a run's folder, in a terminal of that size; each line without the blanks at the end.
    fn drawn(folder: &std::path::Path, width: u16, height: u16) -> Vec<String> {
        let live = Live::open(folder).unwrap();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &live, SystemTime::now())).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_string();
        (0..height).map(line).collect()
    }

    /// A folder with so many steps, the state of the given ranks and some events.
    fn run(steps: u64, ranks: &[RankRow]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let step = |step: u64| {
            let validation = step.is_multiple_of(10).then_some(3.5);
            serde_json::json!({
                "step": step, "loss": 4.0 - step as f64 / 100.0, "validation_loss": validation, "grad_norm": 1.25,
                "lr": 1e-3, "tokens_per_s": 17438.0, "step_ms": 1000.0, "memory_bytes": 5_000_000_000_u64,
            })
            .to_string()
                + "\n"
        };
        std::fs::write(folder.path().join("metrics.jsonl"), (1..=steps).map(step).collect::<String>()).unwrap();
        std::fs::write(folder.path().join("config.toml"), "[train]\nsteps = 120\n").unwrap();
        let event = |level: &str, at: usize, text: &str| {
            let timestamp = format!("2026-01-01T10:00:{at:02}Z");
            serde_json::json!({ "timestamp": timestamp, "level": level, "fields": { "message": text } }).to_string()
                + "\n"
        };
        let log = [
            event("INFO", 1, "trainer 0.1.0 starts as process 7: [\"trainer\"]"),
            event("INFO", 2, "checkpoint after step 10: saved/step-00000010"),
            event("WARN", 3, "slow \u{1b}[31m disk"),
            event("ERROR", 4, "error on rank 1: it died"),
        ];
        std::fs::write(folder.path().join("rank-0.jsonl"), log.concat()).unwrap();
        if !ranks.is_empty() {
            std::fs::write(folder.path().join("ranks.json"), serde_json::to_vec(ranks).unwrap()).unwrap();
        }
        folder
    }

    fn rank(rank: usize, state: RankState, silent_ms: u64) -> RankRow {
        let (host, doing, step) = (Some("node7".into()), Some("submitting a step".into()), Some(41));
        RankRow { rank, host, state, doing, step, region: None, silent_ms, quiet_ms: 0 }
    }

    #[test]
    fn a_terminal_of_80_by_24_shows_numbers_curves_ranks_and_events() {
        let ranks = [rank(0, RankState::Alive, 200), rank(1, RankState::Failed, 9000), rank(2, RankState::Alive, 7000)];
        let folder = run(42, &ranks);
        let lines = drawn(folder.path(), 80, 24);
        let text = lines.join("\n");
        for part in [
            "step 42/120  last step 0 s ago  3 ranks  1 min 18 s left",
            "loss 3.5800  val 3.5000  norm 1.250  lr 1.00e-3  17438 tok/s  memory 4.66 GiB",
            "loss (line), validation (dots)",
            "tokens/s 17438 to 17438",
            "gradient norm 1.250 to 1.250",
            "learning rate 1.00e-3 to 1.00e-3",
            "ranks: 2 of 3 silent or failed",
            "rank 1    node7        failed  step 42",
            "10:00:02 checkpoint rank 0: checkpoint after step 10: saved/step-00000010",
            "10:00:03 warning rank 0: slow \\u{1b}[31m disk",
            "10:00:04 fault rank 0: error on rank 1: it died",
            "q quits",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
        assert!(
            at("rank 1    node7") < at("rank 2    node7") && at("rank 2    node7") < at("rank 0    node7"),
            "{text}"
        );
        assert!(text.chars().any(|letter| ('\u{2801}'..='\u{28ff}').contains(&letter)), "a curve of braille: {text}");
        assert!(text.contains('█') || text.contains('▄'), "bars: {text}");
    }

    #[test]
    fn a_run_without_steps_or_heartbeats_and_any_size_of_a_terminal_are_drawn() {
        let folder = run(0, &[]);
        let text = drawn(folder.path(), 80, 24).join("\n");
        for part in ["step 0/120", "no step so far", "One rank, or a run without heartbeats", "q quits"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let many: Vec<RankRow> = (0..4096).map(|at| rank(at, RankState::Alive, 100)).collect();
        let folder = run(1, &many);
        assert!(drawn(folder.path(), 80, 24).join("\n").contains("ranks: 4096 ranks"));
        for (width, height) in [(1, 1), (20, 5), (80, 10), (200, 60)] {
            drawn(folder.path(), width, height);
        }
    }

    #[test]
    fn the_loads_of_gpus_follow_if_there_are_any() {
        assert_eq!([gpus(&[]), gpus(&[93]), gpus(&[97, 0])], ["", "  GPU 93 %", "  GPU 97 0 %"]);
    }

    #[test]
    fn many_points_become_the_means_of_equal_parts() {
        let points: Vec<(f64, f64)> = (0..1000).map(|at| (f64::from(at), f64::from(at % 10))).collect();
        let few = thinned(&points, 100);
        assert_eq!((few.len(), few[0], few[99]), (100, (4.5, 4.5), (994.5, 4.5)));
        assert_eq!(thinned(&points[..5], 100), points[..5]);
        assert!(thinned(&[], 0).is_empty());
    }
}
