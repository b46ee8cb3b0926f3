//! The validation losses of a run that later steps need: the lowest, and the evaluations since.

use serde::{Deserialize, Serialize};

/// The validation losses of a run so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validated {
    /// The loss of the present state, if evaluated.
    pub loss: Option<f64>,
    /// The lowest loss so far.
    pub best: f64,
    /// The steps of the state with that loss.
    pub best_step: usize,
    /// Evaluations since then.
    pub since: usize,
}

impl Default for Validated {
    fn default() -> Validated {
        Validated { loss: None, best: f64::INFINITY, best_step: 0, since: 0 }
    }
}

impl Validated {
    /// Adds the loss after so many steps. Returns whether it is the lowest so far. One that is not a number never is.
    pub fn add(&mut self, step: usize, loss: f64) -> bool {
        self.loss = Some(loss);
        let is_lowest = loss < self.best;
        if is_lowest {
            (self.best, self.best_step, self.since) = (loss, step, 0);
        } else {
            self.since += 1;
        }
        is_lowest
    }
}

/// The same in a manifest. Losses are the bits of an f64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationEntry {
    /// See [`Validated::loss`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<u64>,
    /// See [`Validated::best`].
    pub best: u64,
    /// See [`Validated::best_step`].
    pub best_step: usize,
    /// See [`Validated::since`].
    pub since: usize,
}

impl ValidationEntry {
    /// `None` before the first evaluation.
    pub(super) fn new(validated: &Validated) -> Option<ValidationEntry> {
        let Validated { loss, best, best_step, since } = *validated;
        (loss.is_some() || best.is_finite() || since > 0).then(|| ValidationEntry {
            loss: loss.map(f64::to_bits),
            best: best.to_bits(),
            best_step,
            since,
        })
    }

    /// The losses that the run goes on with.
    pub(super) fn validated(&self) -> Validated {
        let ValidationEntry { loss, best, best_step, since } = *self;
        Validated { loss: loss.map(f64::from_bits), best: f64::from_bits(best), best_step, since }
    }

    /// The loss of the state in the checkpoint, if it is a number.
    pub(super) fn loss(&self) -> Option<f64> {
        self.loss.map(f64::from_bits).filter(|loss| !loss.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_loss_starts_the_count_of_evaluations_anew() {
        let mut validated = Validated::default();
        assert_eq!(ValidationEntry::new(&validated), None);
        let lowest: Vec<bool> =
            [(10, 3.0), (20, 2.5), (30, 2.5), (40, f64::NAN)].map(|(step, loss)| validated.add(step, loss)).to_vec();
        assert_eq!(lowest, [true, true, false, false]);
        assert_eq!((validated.best, validated.best_step, validated.since), (2.5, 20, 2));
        let entry = ValidationEntry::new(&validated).unwrap();
        assert_eq!((entry.loss(), entry.validated().best.to_bits()), (None, 2.5_f64.to_bits()));
    }
}
