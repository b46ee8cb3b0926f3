//! The files that every step is written to: `metrics.jsonl`, and others if they are turned on.

use std::path::Path;

use crate::config::LoggingConfig;
use crate::report::metrics::{MetricsFile, StepMetrics};
use crate::report::tensorboard::EventFile;
use crate::report::wandb::History;

/// All files that a step is written to.
pub struct RunLog {
    metrics: MetricsFile,
    events: Option<EventFile>,
    history: Option<History>,
}

impl RunLog {
    /// Creates the files in `logging.dir`, or continues them at a `step` above 0. `carried` are lines of metrics that the
    /// checkpoint has.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn open(logging: &LoggingConfig, step: usize, carried: &[u8]) -> std::io::Result<RunLog> {
        let folder = Path::new(&logging.dir);
        let metrics = match step {
            0 => MetricsFile::create(folder)?,
            _ => MetricsFile::resume(folder, step, carried)?,
        };
        let events = logging.tensorboard.then(|| EventFile::create(folder, step)).transpose()?;
        let history = logging.wandb.then(|| History::open(folder, step)).transpose()?;
        Ok(RunLog { metrics, events, history })
    }

    /// Adds a step. Metrics that cannot be written are kept for later. A file of another kind that cannot be written is
    /// given up.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write(&mut self, step: &StepMetrics) -> std::io::Result<()> {
        let metrics = self.metrics.write(step);
        let events = self.events.as_mut().map_or(Ok(()), |events| events.write(step));
        if events.is_err() {
            self.events = None;
        }
        let history = self.history.as_mut().map_or(Ok(()), |history| history.write(step));
        if history.is_err() {
            self.history = None;
        }
        metrics.and(events).and(history)
    }

    /// The lines of `metrics.jsonl` that may not be on disk.
    pub fn missing(&self) -> Vec<u8> {
        self.metrics.missing()
    }

    /// Waits until every line of `metrics.jsonl` is on disk. A resumed run reads that file.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.metrics.sync()
    }

    /// Writes the files that are written once, at the end.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn finish(&mut self) -> std::io::Result<()> {
        self.history.as_mut().map_or(Ok(()), History::finish)
    }
}
