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
    /// Creates the files in `logging.dir`, or continues them at a `step` above 0.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn open(logging: &LoggingConfig, step: usize) -> std::io::Result<RunLog> {
        let folder = Path::new(&logging.dir);
        let metrics = if step == 0 { MetricsFile::create(folder) } else { MetricsFile::resume(folder, step) }?;
        let events = logging.tensorboard.then(|| EventFile::create(folder, step)).transpose()?;
        let history = logging.wandb.then(|| History::open(folder, step)).transpose()?;
        Ok(RunLog { metrics, events, history })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write(&mut self, step: &StepMetrics) -> std::io::Result<()> {
        self.metrics.write(step)?;
        if let Some(events) = &mut self.events {
            events.write(step)?;
        }
        self.history.as_mut().map_or(Ok(()), |history| history.write(step))
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
