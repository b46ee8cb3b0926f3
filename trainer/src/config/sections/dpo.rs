//! The section `dpo`.

use common::choice;
use serde::{Deserialize, Serialize};

section!(DpoConfig { beta: f64, loss_type: PreferenceLoss, label_smoothing: f64, references: Option<String> });

choice! {
    /// The loss of a pair of answers.
    pub enum PreferenceLoss {
        /// That of DPO.
        Sigmoid = "sigmoid",
        /// That of IPO.
        Ipo = "ipo",
    }
}
