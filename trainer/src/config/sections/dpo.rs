//! The section `dpo`.

use common::choice;
use serde::{Deserialize, Serialize};

section!(DpoConfig {
    beta: f64,
    loss_type: PreferenceLoss,
    label_smoothing: f64,
    desirable_weight: f64,
    undesirable_weight: f64,
    references: Option<String>,
});

/// The word for references that each step computes, in place of a file.
const STEP: &str = "step";

impl DpoConfig {
    /// Each step computes the references of its pairs, by the model without its adapters.
    pub fn references_in_step(&self) -> bool {
        self.references.as_deref() == Some(STEP)
    }
}

choice! {
    /// The loss of a pair of answers.
    pub enum PreferenceLoss {
        /// That of DPO.
        Sigmoid = "sigmoid",
        /// That of IPO.
        Ipo = "ipo",
    }
}
