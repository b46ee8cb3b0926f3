//! A step as a picture in text: a line for each stage, its time from left to right.

use crate::predict::forecast::Forecast;
use crate::predict::step_graph::Purpose;

/// The most stages that are drawn.
const MOST: usize = 16;

/// The picture, `width` letters wide. Each letter is the stage's main work in that time.
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
        lines.push_str(&format!("stage {:>3}  {line}\n", stage));
    }
    if forecast.spans.len() > MOST {
        lines.push_str(&format!("and {} stages more\n", forecast.spans.len() - MOST));
    }
    lines + "F forward, B backward, W weight gradients, U update, . waits\n"
}

fn letter(shares: &[f64; 4], cell: f64) -> char {
    let (most, share) = [Purpose::Forward, Purpose::Backward, Purpose::WeightGradients, Purpose::Update]
        .map(|purpose| (purpose, shares[purpose as usize]))
        .into_iter()
        .fold((Purpose::Forward, 0.0), |most, next| if next.1 > most.1 { next } else { most });
    if shares.iter().sum::<f64>() < cell / 2.0 || share == 0.0 {
        return '.';
    }
    match most {
        Purpose::Forward => 'F',
        Purpose::Backward => 'B',
        Purpose::WeightGradients => 'W',
        Purpose::Update => 'U',
    }
}
