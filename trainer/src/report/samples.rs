//! Texts that the model wrote while it trained: a line in `samples.jsonl` for each time.

use std::path::Path;

use common::escape::one_line;
use serde::{Deserialize, Serialize};

use crate::report::metrics::continued;
use crate::report::step_file::StepFile;

/// The file with a line for each step after which the model wrote.
pub const SAMPLES: &str = "samples.jsonl";

/// A text of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleText {
    /// The text that it continued.
    pub prompt: String,
    /// The text that it added.
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

/// Appends to `samples.jsonl`.
pub(crate) struct SamplesFile {
    lines: StepFile,
}

impl SamplesFile {
    /// Continues the file in `folder` after `step` steps. Lines of later steps are removed.
    ///
    /// # Errors
    /// Operating system errors.
    pub(crate) fn open(folder: &Path, step: usize) -> std::io::Result<SamplesFile> {
        let path = folder.join(SAMPLES);
        let (file, _) = continued(&path, "step", step)?;
        Ok(SamplesFile { lines: StepFile::new(path, file)? })
    }

    /// Adds the texts after a step.
    ///
    /// # Errors
    /// Operating system errors.
    pub(crate) fn write(&mut self, samples: &StepSamples) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(samples)?;
        line.push(b'\n');
        self.lines.write(&line)
    }
}
