//! The times at which a run saves, and what becomes of its checkpoints.

use std::path::Path;
use std::time::Instant;

use common::terminal::{PRINTED, warn};
use engine::step::Stage;

use super::Session;
use crate::checkpoint::folder::{Kept, prune};
use crate::checkpoint::manifest::Progress;
use crate::checkpoint::read::verify;
use crate::checkpoint::unfinished::{News, Published};
use crate::checkpoint::validated::Validated;
use crate::checkpoint::write::{Occasion, SaveRequest, begin_save};
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
    fn kept(&self) -> Kept {
        Kept { run: self.origin.run.clone(), newest: self.settings.keep, best: self.settings.save_best }
    }

    /// Begins to take the memory for copies of the state, if a run of so many steps saves at an interval. On a GPU it is
    /// locked meanwhile on a thread of its own. All ranks call it together.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn lock_memory(&mut self, stage: &Stage, steps: usize) -> Result<(), RunError> {
        let settings = self.settings;
        let saves = settings.save_best || (1..steps).contains(&settings.interval);
        if self.dir.is_some() && saves && settings.saves_meanwhile() {
            self.memory.lock(stage, &self.writers, self.local_ranks)?;
        }
        Ok(())
    }

    /// Waits for the memory of [`Session::lock_memory`]. While ranks wait for each other, nothing is locked: the driver may
    /// have to finish a GPU's work first.
    pub fn await_memory(&mut self) {
        self.memory.wait();
    }

    /// Writes a checkpoint, all ranks together, after the one that is being written. At an interval, with
    /// `checkpoint.async_save`, it returns when the copy of the state has begun: see [`Session::saved`]. Otherwise it returns
    /// when the checkpoint is on disk.
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
        stage: &mut Stage,
        (progress, validated): (Progress, Validated),
        occasion: Occasion,
        metrics: &[u8],
    ) -> Result<Option<usize>, RunError> {
        let Some(dir) = self.dir else { return Ok(None) };
        let before = self.end_save()?;
        self.removal.wait();
        let begun = Instant::now();
        let memory = self.memory.of_save(self.settings, occasion, (stage, &self.writers, self.local_ranks));
        // Checkpoints of this start may replace the older ones only if the run is sound. That is not known here; see
        // `prune`.
        let make_room = || {
            let complete = |path: &Path| verify(path, &self.writers.activity).is_ok();
            let before = self.continues_at().unwrap_or(0);
            prune(dir, before, &self.kept(), complete)
        };
        let (origin, writers, memory) = (&self.origin, &self.writers, memory.as_ref());
        let make_room = &make_room;
        let request = SaveRequest { dir, progress, validated, origin, metrics, writers, occasion, memory, make_room };
        let step = progress.step;
        match begin_save(stage, &request) {
            Ok(save) if memory.is_some() && occasion == Occasion::Interval => {
                self.unfinished = Some((step, save));
                tracing::info!("the save after step {step} held training for {:.3} s", begun.elapsed().as_secs_f64());
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
            News::Published(published) => self.ended(step, Ok(Some(published)), Occasion::Interval),
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
        Ok(self.ended(step, save.finish(&self.writers), Occasion::Interval)?.or(new))
    }

    /// The step of a checkpoint that ended, if this rank hears now that it is on disk.
    fn ended(
        &self,
        step: usize,
        result: Result<Option<Published>, SaveError>,
        occasion: Occasion,
    ) -> Result<Option<usize>, RunError> {
        match result {
            Ok(published) => Ok(published.map(|published| {
                tracing::info!("checkpoint after step {step}: {published}");
                step
            })),
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

    /// Begins to remove this run's checkpoints beyond `checkpoint.keep`. The caller knows that the checkpoint of `step` is on
    /// disk and that the run is sound.
    pub fn prune(&mut self, step: usize) {
        if let Some(dir) = self.dir.filter(|_| self.main) {
            let kept = self.kept();
            self.removal.begin(dir, step, kept);
        }
    }

    /// Waits until nothing is being removed, and no memory is being locked.
    pub fn end_threads(&mut self) {
        self.removal.wait();
        self.memory.wait();
    }
}
