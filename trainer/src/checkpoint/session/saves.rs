//! The times at which a run saves, and what becomes of the checkpoints.

use std::path::Path;
use std::time::Instant;

use engine::step::Stage;

use super::states::{Place, why};
use super::{Session, Unfinished};
use crate::checkpoint::folder::{Kept, prune};
use crate::checkpoint::manifest::Progress;
use crate::checkpoint::read::{check_sizes, verify};
use crate::checkpoint::unfinished::{News, Published};
use crate::checkpoint::validated::Validated;
use crate::checkpoint::write::{Occasion, SaveRequest, begin_save, rank_bytes};
use crate::error::{RunError, SaveError};
use crate::told::tell;

/// A save within so many steps is soon. On an H200 6.5 GB are locked in a second.
const SOON: usize = 20;

impl Session<'_> {
    /// The place of the checkpoint that is due after `step` steps, if one is. `last` says that the run ends there, `best`
    /// that the validation loss is the lowest so far.
    pub fn due(&self, step: usize, last: bool, best: bool) -> Option<Place> {
        let at = |interval: usize| interval > 0 && step.is_multiple_of(interval);
        self.dir?;
        if last || at(self.settings.interval) || (best && self.settings.save_best) {
            return Some(Place::Disk);
        }
        (self.states.is_some() && at(self.settings.memory_interval)).then_some(Place::Memory)
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
        let in_memory = self.states.is_some() && (1..steps).contains(&settings.memory_interval);
        let saves = settings.save_best || (1..steps).contains(&settings.interval) || in_memory;
        if self.dir.is_some() && saves && settings.async_save {
            self.memory.lock(stage, &self.writers, self.local_ranks)?;
        }
        Ok(())
    }

    /// Whether a save comes so soon after `step` steps that the memory of [`Session::lock_memory`] would not be locked by then:
    /// the save would hold training, whose steps are better counted from when they are undisturbed.
    pub fn saves_soon(&self, step: usize) -> bool {
        let in_memory = if self.states.is_some() { self.settings.memory_interval } else { 0 };
        let is_soon = |interval: &usize| *interval > 0 && *interval - step % interval <= SOON;
        [self.settings.interval, in_memory].iter().any(is_soon)
    }

    /// Waits for the memory of [`Session::lock_memory`]. While ranks wait for each other, nothing is locked: the driver may
    /// have to finish a GPU's work first.
    pub fn await_memory(&mut self) {
        self.memory.wait();
    }

    /// Writes a checkpoint, all ranks together, after the one that is being written. At an interval, with
    /// `checkpoint.async_save`, it returns when the copy of the state has begun: see [`Session::saved`]. Otherwise it returns
    /// when the checkpoint is complete. To memory it is left out if another one is still being written.
    ///
    /// At an interval a checkpoint that cannot be written is a warning, because the run is worth more than the checkpoint. At
    /// the end it is an error. If there is too little space on disk, checkpoints beyond `checkpoint.keep` that were there when
    /// the run started are removed first. `metrics` are the run's lines that could not be written elsewhere; only rank 0's are
    /// used. Returns the step of a checkpoint that is new on disk.
    ///
    /// # Errors
    /// See [`SaveError`]; a device that cannot be read.
    pub fn save(
        &mut self,
        stage: &mut Stage,
        place: Place,
        now: (Progress, Validated),
        occasion: Occasion,
        metrics: &[u8],
    ) -> Result<Option<usize>, RunError> {
        let Some(dir) = self.dir else { return Ok(None) };
        let folder = match (place, &self.states) {
            (Place::Disk, _) => dir.to_path_buf(),
            (Place::Memory, Some(states)) if self.has_room_for_state(stage, now.0.step) => states.folder.clone(),
            (Place::Memory, _) => return Ok(None),
        };
        let before = self.end_save()?;
        match (place, &mut self.states) {
            (Place::Memory, Some(states)) => states.end_removal(),
            _ => self.removal.wait(),
        }
        Ok(self.write(stage, (place, &folder), now, occasion, metrics)?.or(before))
    }

    /// Writes a checkpoint to this folder: see [`Session::save`]. Nothing else is being written.
    fn write(
        &mut self,
        stage: &mut Stage,
        (place, dir): (Place, &Path),
        (progress, validated): (Progress, Validated),
        occasion: Occasion,
        metrics: &[u8],
    ) -> Result<Option<usize>, RunError> {
        let begun = Instant::now();
        let memory = self.memory.of_save(self.settings, occasion, (stage, &self.writers, self.local_ranks));
        // Checkpoints of this start may replace the older ones only if the run is sound. That is not known here; see
        // `prune`. The older state in memory stays until the newer one is complete.
        let make_room = || {
            let complete = |path: &Path| verify(path, &self.writers.activity).is_ok();
            let before = self.continues_at().unwrap_or(0);
            if place == Place::Disk { prune(dir, before, &self.kept(), complete) } else { Ok(()) }
        };
        let (origin, writers, memory) = (&self.origin, &self.writers, memory.as_ref());
        let make_room = &make_room;
        let request = SaveRequest { dir, progress, validated, origin, metrics, writers, occasion, memory, make_room };
        let step = progress.step;
        match begin_save(stage, &request) {
            Ok(save) if memory.is_some() && occasion == Occasion::Interval => {
                self.unfinished = Some(Unfinished { place, step, save });
                tracing::info!("the save after step {step} held training for {:.3} s", begun.elapsed().as_secs_f64());
                Ok(None)
            }
            Ok(save) => {
                let result = save.finish(writers);
                self.ended((place, step), result, occasion)
            }
            Err(error) => self.ended((place, step), Err(error), occasion),
        }
    }

    /// Whether nothing is being written and the machine's memory has room for a state and a copy of the state. Otherwise
    /// the log says what is the matter. All ranks call it together.
    fn has_room_for_state(&self, stage: &Stage, step: usize) -> bool {
        let save = self.unfinished.as_ref().map(|unfinished| &unfinished.save);
        // A rank that failed leaves the others waiting for its files, until all end that save together.
        let has_failed = (self.writers.any)(save.is_some_and(|save| save.has_failed()));
        if (self.writers.any)(!has_failed && save.is_some_and(|save| save.is_under_way())) {
            if self.main {
                tracing::info!("no state in memory after step {step}: a save is still under way");
            }
            return false;
        }
        let needed = (self.writers.sum)(rank_bytes(stage, &self.writers));
        let is_short = self.memory.is_short((stage, &self.writers, self.local_ranks), needed);
        if let (true, true, Some(states)) = (is_short, self.main, &self.states) {
            states.warn_once(step, "the machine's memory has no room for it and its copy");
        }
        !is_short
    }

    /// The step of a checkpoint that is new on disk since the last call, if one is. It does not wait. Only rank 0 hears it.
    /// Each rank warns if it could not write its part.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn saved(&mut self) -> Result<Option<usize>, RunError> {
        let Some(Unfinished { place, step, save }) = &mut self.unfinished else { return Ok(None) };
        let (news, what) = (save.news(), (*place, *step));
        match news {
            News::None => Ok(None),
            News::Published(published) => self.ended(what, Ok(Some(published)), Occasion::Interval),
            News::Failed(error) => self.ended(what, Err(error), Occasion::Interval),
        }
    }

    /// Waits until the checkpoint that is being written is complete, and returns the checkpoint's step if that is on disk
    /// and [`Session::saved`] did not. All ranks call it together.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn end_save(&mut self) -> Result<Option<usize>, RunError> {
        let new = self.saved()?;
        let Some(Unfinished { place, step, save }) = self.unfinished.take() else { return Ok(new) };
        let result = save.finish(&self.writers);
        Ok(self.ended((place, step), result, Occasion::Interval)?.or(new))
    }

    /// The step of a checkpoint that ended, if this rank hears now that the checkpoint is on disk. States in memory that
    /// are older go.
    fn ended(
        &mut self,
        (place, step): (Place, usize),
        result: Result<Option<Published>, SaveError>,
        occasion: Occasion,
    ) -> Result<Option<usize>, RunError> {
        match (result, &mut self.states) {
            (Ok(None), _) => Ok(None),
            (Ok(Some(published)), states) => {
                tracing::info!("checkpoint after step {step}: {published}");
                if let Some(states) = states {
                    states.remove_all_but((place == Place::Memory).then_some(step));
                }
                Ok((place == Place::Disk).then_some(step))
            }
            (Err(SaveError::Device(error)), _) => Err(error.into()),
            (Err(error), _) if occasion == Occasion::End => Err(error.into()),
            (Err(SaveError::Peer { .. }), _) => Ok(None),
            (Err(error), Some(states)) if place == Place::Memory => {
                states.warn_once(step, &why(&error));
                Ok(None)
            }
            (Err(error), _) => {
                let line = format!("WARNING: {error}. The run continues without it.");
                tell(&line);
                Ok(None)
            }
        }
    }

    /// Begins to remove this run's checkpoints beyond `checkpoint.keep`. The caller knows that the checkpoint of `step` is on
    /// disk and that the run is sound.
    pub fn prune(&mut self, step: usize) {
        if let Some(dir) = self.dir.filter(|_| self.main) {
            let kept = self.kept();
            self.removal.begin(dir, move |dir| prune(dir, step, &kept, |path| check_sizes(path).is_ok()));
        }
    }

    /// Waits until nothing is being removed, and no memory is being locked.
    pub fn end_threads(&mut self) {
        self.removal.wait();
        if let Some(states) = &mut self.states {
            states.end_removal();
        }
        self.memory.wait();
    }
}
