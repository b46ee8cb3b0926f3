//! The files that have a run's steps: `metrics.jsonl` always, others where they are wanted.

use std::path::Path;

use crate::config::LoggingConfig;
use crate::report::metrics::{MetricsFile, StepMetrics};
use crate::report::tensorboard::EventFile;
use crate::report::wandb::History;

/// Every file a step is written to.
pub struct RunLog {
    metrics: MetricsFile,
    events: Option<EventFile>,
    history: Option<History>,
}

impl RunLog {
    /// Starts the files of a run in its folder, or continues them at a `step` above 0.
    ///
    /// # Errors
    /// What the operating system said.
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
    /// What the operating system said.
    pub fn write(&mut self, step: &StepMetrics) -> std::io::Result<()> {
        self.metrics.write(step)?;
        if let Some(events) = &mut self.events {
            events.write(step)?;
        }
        self.history.as_mut().map_or(Ok(()), |history| history.write(step))
    }

    /// Waits until the disk has every line of `metrics.jsonl`, which a continued run reads again.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn sync(&mut self) -> std::io::Result<()> {
        self.metrics.sync()
    }

    /// Writes what is written once, at the end.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn finish(&mut self) -> std::io::Result<()> {
        self.history.as_mut().map_or(Ok(()), History::finish)
    }
}
