//! A step as a picture, in text or in SVG: a row for each stage, its time from left to right.

use std::fmt::Write;

use crate::predict::forecast::Forecast;
use crate::predict::step_graph::Purpose;

/// The most stages that are drawn in text.
const MOST: usize = 16;

/// Sizes in pixels.
const WIDTH: f64 = 1400.0;
const LEFT: f64 = 80.0;
const ROW: f64 = 34.0;
const TOP: f64 = 56.0;

/// A span of a stage: start, end, and purpose.
type Span = (f64, f64, Purpose);

/// The picture of a forecast's step in text, `width` letters wide. Each letter is the stage's main work in that time.
pub fn picture(forecast: &Forecast, width: usize) -> String {
    let mut lines = String::new();
    let end = forecast.spans.iter().flatten().map(|span| span.1).fold(0.0, f64::max);
    let cell = end / width as f64;
    for (stage, spans) in forecast.spans.iter().enumerate().take(MOST) {
        let mut shares = vec![[0.0; 4]; width];
        for &(start, end, purpose) in spans {
            let cells = (start / cell) as usize..=((end / cell) as usize).min(width - 1);
            for at in cells {
                let (from, to) = (at as f64 * cell, (at + 1) as f64 * cell);
                shares[at][purpose as usize] += (end.min(to) - start.max(from)).max(0.0);
            }
        }
        let line: String = shares.iter().map(|shares| letter(shares, cell)).collect();
        lines.push_str(&format!("stage {stage:>3}  {line}\n"));
    }
    if forecast.spans.len() > MOST {
        lines.push_str(&format!("and {} stages more\n", forecast.spans.len() - MOST));
    }
    lines + "F forward, B backward, W weight gradients, U update, . waits\n"
}

/// The letter of the purpose that most of a cell is for.
fn letter(shares: &[f64; 4], cell: f64) -> char {
    let more = |most: (char, f64), (letter, &share)| if share > most.1 { (letter, share) } else { most };
    let (letter, _) = "FBWU".chars().zip(shares).fold(('.', 0.0), more);
    if shares.iter().sum::<f64>() < cell / 2.0 { '.' } else { letter }
}

/// The picture of a forecast's step as SVG.
pub fn timeline_picture(forecast: &Forecast) -> String {
    let end = forecast.spans.iter().flatten().map(|span| span.1).fold(0.0, f64::max).max(1e-9);
    let scale = (WIDTH - LEFT) / end;
    let mut body = String::new();
    for (stage, spans) in forecast.spans.iter().enumerate() {
        let y = TOP + stage as f64 * ROW;
        let _ = writeln!(body, "<text x=\"8\" y=\"{:.0}\">stage {}</text>", y + 18.0, stage);
        // A span narrower than a third of a pixel cannot be seen.
        for (start, until, purpose) in joined(spans, 0.3 / scale) {
            let (colour, word) = look(purpose);
            let _ = writeln!(
                body,
                "<rect x=\"{:.2}\" y=\"{y:.0}\" width=\"{:.2}\" height=\"26\" fill=\"{colour}\"><title>stage {}, {word}: {:.3} to \
                 {:.3} ms</title></rect>",
                LEFT + start * scale,
                ((until - start) * scale).max(0.3),
                stage,
                start * 1e3,
                until * 1e3
            );
        }
    }
    let bottom = TOP + forecast.spans.len() as f64 * ROW;
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let (x, anchor) = (LEFT + share * (WIDTH - LEFT), if part == 4 { "end" } else { "start" });
        let label = format!("{:.1} ms", share * end * 1e3);
        let _ = writeln!(body, "<text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{label}</text>", bottom + 16.0);
    }
    let keys = [Purpose::Forward, Purpose::Backward, Purpose::WeightGradients, Purpose::Update].map(look);
    let mut x = LEFT;
    for (colour, word) in keys {
        let _ = writeln!(body, "<rect x=\"{x:.0}\" y=\"28\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = writeln!(body, "<text x=\"{:.0}\" y=\"39\">{word}</text>", x + 18.0);
        x += 140.0;
    }
    let shown = if end < 0.98 * forecast.step { ". Only its first microbatches are drawn" } else { "" };
    let title =
        format!("A step takes {:.1} ms{shown}. White: waits for other stages or for transfers", forecast.step * 1e3);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0}\" viewBox=\"0 0 {0} {1:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\">{title}</text>\n{body}</svg>\n",
        WIDTH + 8.0,
        bottom + 28.0
    )
}

fn look(purpose: Purpose) -> (&'static str, &'static str) {
    match purpose {
        Purpose::Forward => ("#4292c6", "forward"),
        Purpose::Backward => ("#fd8d3c", "backward"),
        Purpose::WeightGradients => ("#74a957", "weight gradients"),
        Purpose::Update => ("#969696", "update"),
    }
}

/// Spans of one purpose with less than `gap` seconds in between, joined.
fn joined(spans: &[Span], gap: f64) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for &(start, end, purpose) in spans {
        match joined.last_mut().filter(|last| last.2 == purpose && start - last.1 < gap) {
            Some(last) => last.1 = end.max(last.1),
            None => joined.push((start, end, purpose)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::forecast::Fit;

    #[test]
    fn each_stage_has_a_row_with_boxes_where_it_works() {
        let forecast = Forecast {
            memory: Vec::new(),
            fit: Fit::Fits,
            step: 0.004,
            tokens_per_second: 1.0,
            mfu: 0.5,
            days: 1.0,
            idle: 0.1,
            exposed: 0.1,
            spans: vec![
                vec![
                    (0.0, 0.001, Purpose::Forward),
                    (0.001, 0.002, Purpose::Forward),
                    (0.003, 0.004, Purpose::Backward),
                ],
                vec![(0.001, 0.003, Purpose::WeightGradients), (0.0035, 0.004, Purpose::Update)],
            ],
        };
        let svg = timeline_picture(&forecast);
        assert_eq!(svg.matches("<title>").count(), 4, "the two forwards are one box: {svg}");
        for part in [
            "A step takes 4.0 ms. White",
            "<title>stage 0, forward: 0.000 to 2.000 ms</title>",
            "<title>stage 0, backward: 3.000 to 4.000 ms</title>",
            "<title>stage 1, weight gradients: 1.000 to 3.000 ms</title>",
            "stage 1</text>",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        let longer = timeline_picture(&Forecast { step: 0.1, ..forecast });
        assert!(longer.contains("A step takes 100.0 ms. Only its first microbatches are drawn"));
    }
}
