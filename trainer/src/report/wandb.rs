//! A run's history in the form of Weights & Biases: `wandb-history.jsonl`, a row per step with W&B's `_step`, `_timestamp` and
//! `_runtime`, and `wandb-summary.json`, the last value of each. To send it later, call
//! `wandb.log(row, step=row["_step"])` for every row. [`super::wandb_client`] sends rows while the run goes on.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::files::write_file;
use serde_json::{Map, Value};

use crate::report::metrics::{StepMetrics, continued};
use crate::report::tensorboard::{scalars, seconds};

/// The file in `logging.dir` with a row for each step.
pub(crate) const HISTORY: &str = "wandb-history.jsonl";

/// The file in `logging.dir` with the last row.
pub(crate) const SUMMARY: &str = "wandb-summary.json";

/// The history of a run.
pub struct History {
    file: BufWriter<File>,
    summary: Map<String, Value>,
    summary_path: PathBuf,
    began: Instant,
    /// Seconds that the run took in earlier processes.
    before: f64,
}

impl History {
    /// Creates the history in `folder`, or continues after the rows of `step` steps.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn open(folder: &Path, step: usize) -> std::io::Result<History> {
        let path = folder.join(HISTORY);
        let (file, last) = continued(&path, "_step", step)?;
        let summary = last.and_then(|row| row.as_object().cloned()).unwrap_or_default();
        let before = summary.get("_runtime").and_then(Value::as_f64).unwrap_or(0.0);
        let summary_path = folder.join(SUMMARY);
        Ok(History { file: BufWriter::new(file), summary, summary_path, began: Instant::now(), before })
    }

    /// The last step that has a row; 0 before the first.
    pub fn last_step(&self) -> u64 {
        self.summary.get("_step").and_then(Value::as_u64).unwrap_or(0)
    }

    /// Adds a step, and returns the step's row.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write(&mut self, metrics: &StepMetrics) -> std::io::Result<String> {
        let mut row = Map::new();
        row.insert("_step".into(), metrics.step.into());
        row.insert("_timestamp".into(), seconds().into());
        row.insert("_runtime".into(), (self.before + self.began.elapsed().as_secs_f64()).into());
        row.extend(scalars(metrics).into_iter().map(|(name, value)| (name, value.into())));
        let line = serde_json::to_string(&row)? + "\n";
        self.summary.extend(row);
        self.file.write_all(line.as_bytes())?;
        self.file.flush()?;
        Ok(line)
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn finish(&mut self) -> std::io::Result<()> {
        write_file(&self.summary_path, format!("{:#}\n", Value::Object(self.summary.clone())))
    }
}
