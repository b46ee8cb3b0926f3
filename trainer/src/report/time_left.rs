//! How long a run will still take.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The rate is that of so many recent steps, or more if evaluations or checkpoints are further apart.
const FEWEST: usize = 50;

/// The most steps that are looked back on.
const MOST: usize = 10_000;

/// Measures the rate of recent steps. The time between steps counts: each kind of evaluation and checkpoint is included
/// once at least, after the first time.
pub(crate) struct TimeLeft {
    /// When each of the recent steps ended.
    ends: VecDeque<Instant>,
    /// Steps that are looked back on.
    window: usize,
    /// Steps at the start that do not count: they compile kernels, and capture graphs.
    settling: usize,
}

impl TimeLeft {
    /// `intervals` are the steps between evaluations and between checkpoints; 0 for none.
    pub(crate) fn new(intervals: [usize; 2], settling: usize) -> TimeLeft {
        let window = intervals.into_iter().fold(FEWEST, usize::max).min(MOST);
        TimeLeft { ends: VecDeque::new(), window, settling }
    }

    /// A step has ended, with the evaluation after the step.
    pub(crate) fn step_ended(&mut self, at: Instant) {
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        self.ends.push_back(at);
        if self.ends.len() > self.window + 1 {
            self.ends.pop_front();
        }
    }

    /// The time of so many steps. `None` until two steps have ended.
    pub(crate) fn of(&self, steps: usize) -> Option<Duration> {
        let (first, last) = (self.ends.front()?, self.ends.back()?);
        let measured = self.ends.len() - 1;
        (measured > 0).then(|| last.duration_since(*first).mul_f64(steps as f64 / measured as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_recent_steps_with_the_evaluations_between_them() {
        let begun = Instant::now();
        let mut left = TimeLeft::new([100, 0], 2);
        let mut at = begun;
        // Two steps of a minute each, then 300 of 1 s, then 100 of 2 s. An evaluation of 50 s follows every hundredth step.
        for step in 1..=402 {
            let seconds = match step {
                1..=2 => 60,
                3..=302 => 1,
                _ => 2,
            };
            at += Duration::from_secs(seconds + if step % 100 == 2 && step > 2 { 50 } else { 0 });
            left.step_ended(at);
            let expected = match step {
                1..=3 => None,
                4 => Some(10),
                102 => Some(15), // 10 steps, and a tenth of an evaluation
                302 => Some(15),
                402 => Some(25),
                _ => continue,
            };
            assert_eq!(left.of(10).map(|time| time.as_secs()), expected, "after step {step}");
        }
    }
}
