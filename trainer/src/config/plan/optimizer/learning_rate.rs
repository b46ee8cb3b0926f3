//! The learning rate by step.

/// A learning-rate schedule: warm-up, then the course that [`Decay`] gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// The largest rate.
    pub peak: f64,
    /// The rate at the end of a decay.
    pub floor: f64,
    /// Steps of linear warm-up.
    pub warmup: usize,
    /// The course after warm-up.
    pub decay: Decay,
    /// Steps of the run.
    pub steps: usize,
}

/// The rate after warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// The rate stays at the peak.
    None,
    /// The rate follows half a cosine, down to the floor at the last step.
    Cosine,
    /// The rate falls linearly, down to the floor at the last step.
    Linear,
    /// The rate falls with the root of the number of steps, from the peak at the end of warm-up, and not below the floor.
    InverseSqrt,
    /// The rate stays at the peak, and falls linearly to the floor over the last `steps` steps.
    StableThenLinear {
        /// Length of the decay.
        steps: usize,
    },
}

impl LearningRate {
    /// The rate of a step, counted from 0. In warm-up step `i` has `peak * (i + 1) / (warmup + 1)`, as in nanoGPT. The
    /// last step of a decay has the floor.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        let last = self.steps.saturating_sub(1);
        let from = match self.decay {
            Decay::None => return self.peak,
            Decay::InverseSqrt => {
                let warmup = self.warmup.max(1) as f64;
                return (self.peak * (warmup / (step.max(1) as f64).max(warmup)).sqrt()).max(self.floor);
            }
            Decay::Cosine | Decay::Linear => self.warmup,
            Decay::StableThenLinear { steps } => last.saturating_sub(steps).max(self.warmup),
        };
        if step <= from || last <= from {
            return if step > last { self.floor } else { self.peak };
        }
        let progress = ((step - from) as f64 / (last - from) as f64).min(1.0);
        let share = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            _ => 1.0 - progress,
        };
        self.floor + share * (self.peak - self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> LearningRate {
        LearningRate { peak: 1.0, floor: 0.1, warmup: 4, decay, steps: 101 }
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn warm_up_is_linear_and_never_0() {
        let s = schedule(Decay::None);
        for (step, rate) in [(0, 0.2), (1, 0.4), (3, 0.8), (4, 1.0), (1000, 1.0)] {
            close(s.at(step), rate);
        }
    }

    #[test]
    fn cosine_passes_its_middle_and_ends_at_the_floor() {
        let s = schedule(Decay::Cosine);
        close(s.at(4), 1.0);
        close(s.at(52), 0.55);
        close(s.at(100), 0.1);
        close(s.at(500), 0.1);
    }

    #[test]
    fn linear_falls_from_warm_up_to_the_floor_at_the_last_step() {
        let s = schedule(Decay::Linear);
        for (step, rate) in [(3, 0.8), (4, 1.0), (28, 0.775), (52, 0.55), (100, 0.1), (500, 0.1)] {
            close(s.at(step), rate);
        }
    }

    #[test]
    fn inverse_sqrt_halves_when_four_times_the_steps_of_warm_up_are_done_and_stays_above_the_floor() {
        let s = schedule(Decay::InverseSqrt);
        for (step, rate) in [(3, 0.8), (4, 1.0), (16, 0.5), (64, 0.25), (400, 0.1), (4000, 0.1)] {
            close(s.at(step), rate);
        }
        let without = LearningRate { warmup: 0, ..s };
        for (step, rate) in [(0, 1.0), (1, 1.0), (4, 0.5), (9, 1.0 / 3.0)] {
            close(without.at(step), rate);
        }
    }

    #[test]
    fn wsd_is_stable_then_falls_linearly_to_the_floor() {
        let s = schedule(Decay::StableThenLinear { steps: 10 });
        for (step, rate) in [(4, 1.0), (90, 1.0), (95, 0.55), (100, 0.1)] {
            close(s.at(step), rate);
        }
    }
}
