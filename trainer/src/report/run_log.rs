//! The files that every step is written to: `metrics.jsonl`, and others if they are turned on.

use std::io;
use std::path::Path;

use crate::config::RunConfig;
use crate::config::unused_settings::unread_own;
use crate::extensions::{Extensions, MetricsSink, Own};
use crate::report::metrics::{StepMetrics, between, continued, created, resumed};
use crate::report::samples::{SAMPLES, StepSamples};
use crate::report::step_file::StepFile;
use crate::report::tensorboard::EventFile;
use crate::report::wandb::History;
use crate::report::wandb_client::Client;
use crate::told::tell;

/// All files that a step is written to.
pub struct RunLog {
    metrics: StepFile,
    events: Option<EventFile>,
    history: Option<History>,
    client: Option<Client>,
    samples: Option<StepFile>,
    /// Receivers that the program adds, by name.
    sinks: Vec<(&'static str, Box<dyn MetricsSink>)>,
}

impl RunLog {
    /// Creates the files in `logging.dir`, or continues them after `step` steps. `carried` are lines of metrics that the
    /// checkpoint has. Rows for Weights & Biases also go to its `client`, if there is one. Steps that have metrics and no row
    /// get one.
    ///
    /// # Errors
    /// Operating system errors; a receiver of the program's that cannot be made.
    pub fn open(
        config: &RunConfig,
        step: usize,
        carried: &[u8],
        mut client: Option<Client>,
    ) -> std::io::Result<RunLog> {
        let logging = &config.logging;
        let folder = Path::new(&logging.dir);
        let metrics = match step {
            0 => created(folder)?,
            _ => resumed(folder, step, carried)?,
        };
        let events = logging.tensorboard.then(|| EventFile::create(folder, step)).transpose()?;
        let mut history = logging.wandb.then(|| History::open(folder, step)).transpose()?;
        if let (Some(history), 1..) = (&mut history, step) {
            for metrics in between(folder, history.last_step()..step as u64)? {
                let row = history.write(&metrics)?;
                client.iter_mut().for_each(|client| client.send(&row));
            }
        }
        let samples = logging.sample_prompts.as_ref().map(|_| {
            let path = folder.join(SAMPLES);
            StepFile::new(path.clone(), continued(&path, "step", step)?.0)
        });
        let samples = samples.transpose()?;
        let asked = config.own.texts("metrics");
        let named = Extensions::installed().sinks.iter().filter(|sink| asked.contains(&sink.name));
        let made = |sink: &Own<Box<dyn MetricsSink>>| Ok((sink.name, (sink.make)(config).map_err(io::Error::other)?));
        let sinks: Vec<_> = named.map(made).collect::<io::Result<_>>()?;
        if !sinks.is_empty() {
            unread_own(config).for_each(|unread| tell(&format!("notice: {unread}")));
        }
        Ok(RunLog { metrics, events, history, client, samples, sinks })
    }

    /// Adds a step. Metrics that cannot be written are kept for later. A file of another kind that cannot be written is
    /// given up.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write(&mut self, step: &StepMetrics) -> std::io::Result<()> {
        let metrics = self.metrics.add(step);
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
        self.sinks.retain_mut(|(name, sink)| {
            let taken = sink.write(step);
            if let Err(error) = &taken {
                tell(&format!("WARNING: {name} of own.metrics takes no more metrics: {error}"));
            }
            taken.is_ok()
        });
        metrics.and(events).and(row.map(drop))
    }

    /// Adds texts of the model.
    ///
    /// # Errors
    /// Operating system errors.
    pub fn write_samples(&mut self, samples: &StepSamples) -> std::io::Result<()> {
        self.samples.as_mut().map_or(Ok(()), |file| file.add(samples))
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::config::ConfigSources;
    use crate::report::metrics::METRICS;
    use crate::report::wandb::HISTORY;

    #[test]
    fn steps_that_a_full_disk_kept_from_the_history_get_their_rows_when_the_run_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut sources = ConfigSources::default();
        sources.set("logging.dir", &format!("{:?}", folder.path()), "test").unwrap();
        sources.set("logging.wandb", "true", "test").unwrap();
        let config = sources.resolve();
        let line = |step: usize, loss: &str| {
            format!(
                "{{\"step\":{step},\"samples\":8,\"loss\":{loss},\"z_loss\":0.5,\"grad_norm\":1.0,\"lr\":0.1,\"tokens_per_s\":9.0,\
                 \"tflops\":1.0,\"mfu\":null,\"step_ms\":2.0,\"host_ms\":1.0,\"data_wait_ms\":0.0,\"memory_bytes\":7}}\n"
            )
        };
        let all = [(1, "1.5"), (2, "2.5"), (3, "null"), (4, "4.5"), (5, "5.5")];
        let metrics: String = all.iter().map(|(step, loss)| line(*step, loss)).collect();
        std::fs::write(folder.path().join(METRICS), metrics).unwrap();
        std::fs::write(folder.path().join(HISTORY), "{\"_step\":1,\"_runtime\":3.0,\"train/loss\":1.5}\n{\"_st")
            .unwrap();
        drop(RunLog::open(&config, 4, b"", None).unwrap());
        let rows = std::fs::read_to_string(folder.path().join(HISTORY)).unwrap();
        let rows: Vec<Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        let losses: Vec<(u64, Option<f64>)> =
            rows.iter().map(|row| (row["_step"].as_u64().unwrap(), row["train/loss"].as_f64())).collect();
        assert_eq!(losses, [(1, Some(1.5)), (2, Some(2.5)), (3, None), (4, Some(4.5))]);
        assert_eq!((&rows[1]["train/z_loss"], &rows[1]["memory/bytes"]), (&0.5.into(), &7.0.into()));
    }
}
