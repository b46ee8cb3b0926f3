//! The files that every step is written to: `metrics.jsonl`, and others if they are turned on.

use std::path::Path;

use crate::config::LoggingConfig;
use crate::report::metrics::{MetricsFile, StepMetrics};
use crate::report::samples::{SamplesFile, StepSamples};
use crate::report::tensorboard::EventFile;
use crate::report::wandb::History;
use crate::report::wandb_client::Client;

/// All files that a step is written to.
pub struct RunLog {
    metrics: MetricsFile,
    events: Option<EventFile>,
    history: Option<History>,
    client: Option<Client>,
    samples: Option<SamplesFile>,
}

impl RunLog {
    /// Creates the files in `logging.dir`, or continues them after `step` steps. `carried` are lines of metrics that the
    /// checkpoint has. Rows for Weights & Biases also go to its `client`, if there is one.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn open(
        logging: &LoggingConfig,
        step: usize,
        carried: &[u8],
        client: Option<Client>,
    ) -> std::io::Result<RunLog> {
        let folder = Path::new(&logging.dir);
        let metrics = match step {
            0 => MetricsFile::create(folder)?,
            _ => MetricsFile::resume(folder, step, carried)?,
        };
        let events = logging.tensorboard.then(|| EventFile::create(folder, step)).transpose()?;
        let history = logging.wandb.then(|| History::open(folder, step)).transpose()?;
        let samples = logging.sample_prompts.as_ref().map(|_| SamplesFile::open(folder, step)).transpose()?;
        Ok(RunLog { metrics, events, history, client, samples })
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
        let row = self.history.as_mut().map(|history| history.write(step)).transpose();
        match (&row, &mut self.client) {
            (Err(_), _) => self.history = None,
            (Ok(Some(row)), Some(client)) => client.send(row),
            _ => {}
        }
        metrics.and(events).and(row.map(drop))
    }

    /// Adds texts of the model.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write_samples(&mut self, samples: &StepSamples) -> std::io::Result<()> {
        self.samples.as_mut().map_or(Ok(()), |file| file.write(samples))
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
        if let Some(client) = self.client.take() {
            client.finish();
        }
        self.history.as_mut().map_or(Ok(()), History::finish)
    }
}
