//! A run that goes on, from the run's folder: read again and again, each time only the new part.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::UserError;
use common::files::{open_file, read_file, read_text};
use device::cuda::GpuLoads;
use launch::watch::ranks_file::{RANKS, RankRow};

use super::events::Log;
use super::metrics::Metrics;
use super::run::{LARGEST_CONFIG, check_folder, config_in, rank_logs};
use trainer::report::metrics::METRICS;
use trainer::run::run_folder::CONFIG;

/// The largest state of ranks that is read, bytes.
const LARGEST_RANKS: u64 = 64 << 20;

/// The speed of a run is that of so many steps.
const LAST_STEPS: usize = 50;

/// A run that may go on.
pub(crate) struct Live {
    folder: PathBuf,
    pub(crate) metrics: Metrics,
    /// Bytes of the metrics that were read: whole lines.
    read: u64,
    pub(crate) log: Log,
    /// The logs that `log` was made from, and the logs' sizes then.
    logs: Vec<(usize, PathBuf, u64)>,
    /// The state of the ranks, and the time when the state was written. `None` for one rank, or without heartbeats.
    pub(crate) ranks: Option<(Vec<RankRow>, SystemTime)>,
    /// Steps that the run is to do.
    pub(crate) steps: Option<u64>,
    /// When the last step was written.
    pub(crate) last_step: Option<SystemTime>,
    /// The loads of this machine's GPUs, in percent.
    pub(crate) gpu_loads: Vec<u32>,
    /// `None` on a machine without GPUs.
    gpus: Option<GpuLoads>,
}

impl Live {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// A folder that is not that of a run.
    pub(crate) fn open(folder: &Path) -> Result<Live, UserError> {
        check_folder(folder, &rank_logs(folder))?;
        let mut live = Live {
            folder: folder.to_path_buf(),
            metrics: Metrics::default(),
            read: 0,
            log: Log::default(),
            logs: Vec::new(),
            ranks: None,
            steps: None,
            last_step: None,
            gpu_loads: Vec::new(),
            gpus: GpuLoads::open(),
        };
        live.refresh();
        Ok(live)
    }

    /// The user's name of the folder.
    pub(crate) fn name(&self) -> String {
        self.folder.display().to_string()
    }

    /// Reads the new parts of the files. A file that cannot be read now is tried again the next time.
    pub(crate) fn refresh(&mut self) {
        let _ = self.refresh_metrics();
        let _ = self.refresh_log();
        let path = self.folder.join(RANKS);
        let written = std::fs::metadata(&path).and_then(|file| file.modified());
        let rows = read_file(&path, LARGEST_RANKS).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // A file under another name becomes this one as a whole, so a file that cannot be read is not there.
        self.ranks = rows.zip(written.ok());
        self.steps = self.planned_steps().or(self.steps);
        self.gpu_loads = self.gpus.as_ref().map_or(Vec::new(), GpuLoads::percents);
    }

    fn refresh_metrics(&mut self) -> std::io::Result<()> {
        let mut file = open_file(&self.folder.join(METRICS))?;
        let now = file.metadata()?;
        self.last_step = now.modified().ok();
        if now.len() < self.read {
            // Another run has taken the folder, or this one has gone back to an earlier step.
            (self.metrics, self.read) = (Metrics::default(), 0);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        self.read += self.metrics.add(&bytes) as u64;
        Ok(())
    }

    fn refresh_log(&mut self) -> std::io::Result<()> {
        let with_size = |(rank, path): (usize, PathBuf)| {
            let size = std::fs::metadata(&path).map_or(0, |file| file.len());
            (rank, path, size)
        };
        let logs: Vec<_> = rank_logs(&self.folder).into_iter().map(with_size).collect();
        if logs != self.logs {
            let mut log = Log::default();
            for (rank, path, _) in &logs {
                log.add(path, *rank)?;
            }
            (self.log, self.logs) = (log, logs);
        }
        Ok(())
    }

    fn planned_steps(&self) -> Option<u64> {
        let text = read_text(&self.folder.join(CONFIG), LARGEST_CONFIG).ok()?;
        config_in(&text).map(|config| config.train.steps as u64)
    }

    /// The time that the steps to come will take, at the mean speed of the last steps. `None` if the run is done, or its
    /// speed is not known.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let last = self.metrics.rows.values().rev().take(LAST_STEPS).filter_map(|row| row.step_ms);
        let last: Vec<f64> = last.filter(|time| time.is_finite() && *time >= 0.0).collect();
        let left = self.steps?.checked_sub(self.metrics.last_step()).filter(|left| *left > 0 && !self.log.is_done)?;
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        Duration::try_from_secs_f64(mean * left as f64 / 1e3).ok()
    }

    /// The number of ranks.
    pub(crate) fn rank_count(&self) -> usize {
        self.ranks.as_ref().map_or(0, |(rows, _)| rows.len()).max(self.logs.len()).max(1)
    }
}

/// How long ago something was.
pub(crate) fn age(of: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use common::files::open_to_append;

    use super::*;

    #[test]
    fn what_a_run_writes_between_two_looks_is_added_and_a_new_run_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS);
        let add = |text: &str| {
            let mut file = open_to_append(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        assert!(Live::open(folder.path()).err().unwrap().to_string().contains("has neither metrics.jsonl nor"));
        add("{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo");
        let mut live = Live::open(folder.path()).unwrap();
        assert_eq!((live.metrics.last_step(), live.rank_count(), live.steps), (1, 1, None));
        add("ss\":2.25}\n");
        std::fs::write(folder.path().join("config.toml"), "[train]\nsteps = 40\n").unwrap();
        let row = RankRow { rank: 1, ..RankRow::default() };
        std::fs::write(folder.path().join(RANKS), serde_json::to_vec(&[RankRow::default(), row]).unwrap()).unwrap();
        live.refresh();
        assert_eq!((live.metrics.last_step(), live.rank_count(), live.steps), (2, 2, Some(40)));
        assert_eq!((live.metrics.rows[&2].loss, live.metrics.damaged), (Some(2.25), 0));
        std::fs::write(&path, "{\"step\":1,\"loss\":9.0}\n").unwrap();
        live.refresh();
        assert_eq!((live.metrics.last_step(), live.metrics.rows[&1].loss), (1, Some(9.0)));
    }
}
