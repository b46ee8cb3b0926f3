//! The times at which a run saves, and what becomes of its checkpoints.

use std::path::{Path, PathBuf};

use common::terminal::{PRINTED, warn};
use engine::step::Stage;

use super::Session;
use crate::checkpoint::folder::{Kept, prune};
use crate::checkpoint::manifest::Progress;
use crate::checkpoint::read::{check_sizes, verify};
use crate::checkpoint::unfinished::News;
use crate::checkpoint::validated::Validated;
use crate::checkpoint::write::{Occasion, SaveRequest, begin_save, rank_bytes};
use crate::error::{RunError, SaveError};

impl Session<'_> {
    /// Whether a checkpoint is due after `step` steps. `last` says that the run ends there, `best` that the validation loss
    /// is the lowest so far.
    pub fn due(&self, step: usize, last: bool, best: bool) -> bool {
        let interval = self.settings.interval;
        let at_interval = interval > 0 && step.is_multiple_of(interval);
        self.dir.is_some() && (last || at_interval || (best && self.settings.save_best))
    }

    /// The checkpoints of the run that are never removed.
    fn kept(&self) -> Kept<'_> {
        Kept { run: self.origin.run.as_deref(), newest: self.settings.keep, best: self.settings.save_best }
    }

    /// Writes a checkpoint, all ranks together, after the one that is being written. At an interval, with
    /// `checkpoint.async_save`, it returns when the state is copied: see [`Session::saved`]. Otherwise it returns when the
    /// checkpoint is on disk.
    ///
    /// At an interval a checkpoint that cannot be written is a warning, because the run is worth more than the checkpoint. At
    /// the end it is an error. If there is too little space, checkpoints beyond `checkpoint.keep` that were there when the
    /// run started are removed first. `metrics` are the run's lines that could not be written elsewhere; only rank 0's are
    /// used.
    ///
    /// # Errors
    /// See [`SaveError`]; a device that cannot be read.
    pub fn save(
        &mut self,
        stage: &Stage,
        (progress, validated): (Progress, Validated),
        occasion: Occasion,
        metrics: &[u8],
    ) -> Result<Option<usize>, RunError> {
        let Some(dir) = self.dir else { return Ok(None) };
        let before = self.end_save()?;
        // Checkpoints of this start may replace the older ones only if the run is sound. That is not known here; see
        // `prune`.
        let make_room = || {
            let complete = |path: &Path| verify(path, &self.writers.activity).is_ok();
            let before = self.continues_at().unwrap_or(0);
            prune(dir, before, &self.kept(), complete)
        };
        let (origin, writers) = (&self.origin, &self.writers);
        let make_room = &make_room;
        let copies = occasion == Occasion::Interval && self.settings.async_save && self.can_copy(stage);
        let request = SaveRequest { dir, progress, validated, origin, metrics, writers, occasion, copies, make_room };
        let step = progress.step;
        match begin_save(stage, &request) {
            Ok(save) if copies => {
                self.unfinished = Some((step, save));
                Ok(before)
            }
            Ok(save) => Ok(self.ended(step, save.finish(writers), occasion)?.or(before)),
            Err(error) => Ok(self.ended(step, Err(error), occasion)?.or(before)),
        }
    }

    /// The step of a checkpoint that is new on disk since the last call, if one is. It does not wait. Only rank 0 hears it.
    /// Each rank warns if it could not write its part.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn saved(&mut self) -> Result<Option<usize>, RunError> {
        let Some((step, save)) = &mut self.unfinished else { return Ok(None) };
        let step = *step;
        match save.news() {
            News::None => Ok(None),
            News::Published(path) => self.ended(step, Ok(path), Occasion::Interval),
            News::Failed(error) => self.ended(step, Err(error), Occasion::Interval),
        }
    }

    /// Waits until the checkpoint that is being written is on disk, and returns its step if [`Session::saved`] did not. All
    /// ranks call it together.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn end_save(&mut self) -> Result<Option<usize>, RunError> {
        let new = self.saved()?;
        let Some((step, save)) = self.unfinished.take() else { return Ok(new) };
        let was_told = save.is_published();
        match save.finish(&self.writers) {
            Ok(_) if was_told => Ok(new),
            result => self.ended(step, result, Occasion::Interval),
        }
    }

    /// The step of a checkpoint that ended, if it is on disk.
    fn ended(
        &self,
        step: usize,
        result: Result<PathBuf, SaveError>,
        occasion: Occasion,
    ) -> Result<Option<usize>, RunError> {
        match result {
            Ok(path) => {
                if self.main {
                    tracing::info!("checkpoint after step {step}: {}", path.display());
                }
                Ok(Some(step))
            }
            Err(SaveError::Device(error)) => Err(error.into()),
            Err(error) if occasion == Occasion::End => Err(error.into()),
            Err(SaveError::Peer { .. }) => Ok(None),
            Err(error) => {
                let line = format!("WARNING: {error}. The run continues without it.");
                warn(&line);
                tracing::warn!(target: PRINTED, "{line}");
                Ok(None)
            }
        }
    }

    /// Whether the machine's memory has room for a copy of the state of all its ranks. All ranks of the run call it together.
    fn can_copy(&self, stage: &Stage) -> bool {
        let needed = rank_bytes(stage, &self.writers).saturating_mul(self.local_ranks as u64);
        let free = stage.device().free_host_memory().map(|free| free as u64);
        let short = (self.writers.any)(free.is_some_and(|free| free < needed));
        if short && self.main && !self.told_no_copy.replace(true) {
            warn(
                "notice: the machine's memory has no room for a copy of the state. The run waits while it saves, as with \
                 checkpoint.async_save = false",
            );
        }
        !short
    }

    /// Removes this run's checkpoints beyond `checkpoint.keep`. The caller knows that the checkpoint of `step` is on disk and
    /// that the run is sound.
    pub fn prune(&self, step: usize) {
        let Some(dir) = self.dir.filter(|_| self.main) else { return };
        let complete = |path: &Path| check_sizes(path).is_ok();
        if let Err(error) = prune(dir, step, &self.kept(), complete) {
            warn(&format!("WARNING: old checkpoints in {} were not removed: {error}", dir.display()));
        }
    }
}
