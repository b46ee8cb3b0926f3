//! Texts that the model wrote during training: a line in `samples.jsonl` for each time.

use common::escape::one_line;
use serde::{Deserialize, Serialize};

/// The file with a line for each step after which the model wrote.
pub const SAMPLES: &str = "samples.jsonl";

/// A text of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleText {
    /// The text that the model continued.
    pub prompt: String,
    /// The text that the model added.
    pub text: String,
}

impl SampleText {
    /// A line for people. Line breaks in the text are escaped.
    pub(crate) fn line(&self) -> String {
        format!("  sample: {} -> {}", one_line(&self.prompt), one_line(&self.text))
    }
}

/// The texts after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSamples {
    /// The steps done.
    pub step: usize,
    /// One for each prompt.
    pub samples: Vec<SampleText>,
}
