//! The line at the bottom of a terminal that shows how far a run has come.

use std::time::{Duration, Instant};

use common::terminal::status;

/// The line changes no more often than this.
const INTERVAL: Duration = Duration::from_millis(100);

/// Cells of the bar.
const CELLS: usize = 24;

/// The line, drawn again as the run goes on.
#[derive(Default)]
pub(crate) struct ProgressLine {
    drawn: Option<Instant>,
}

impl ProgressLine {
    /// Shows that `done` of `steps` steps are done. `left` is the time left, in words.
    pub(crate) fn show(&mut self, done: usize, steps: usize, left: Option<&str>, loss: f64) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= INTERVAL) {
            self.drawn = Some(Instant::now());
            status(&words(done, steps, left, loss));
        }
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        status("");
    }
}

fn words(done: usize, steps: usize, left: Option<&str>, loss: f64) -> String {
    let filled = CELLS * done.min(steps) / steps.max(1);
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(CELLS - filled));
    let left = left.map_or(String::new(), |left| format!("  {left} left"));
    format!("{bar}  {done}/{steps}{left}  loss {loss:.4}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_as_steps_are_done() {
        assert_eq!(words(0, 100, None, 5.5), format!("{}  0/100  loss 5.5000", "░".repeat(24)));
        let half = format!("{}{}  50/100  6 min left  loss 1.2500", "█".repeat(12), "░".repeat(12));
        assert_eq!(words(50, 100, Some("6 min"), 1.25), half);
        assert!(words(100, 100, None, 1.0).starts_with(&"█".repeat(24)));
    }
}
