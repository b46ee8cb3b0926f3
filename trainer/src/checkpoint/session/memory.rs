//! The memory for a copy of the state, from which a save is written.

use std::cell::Cell;

use common::format::bytes;
use device::{Growth, Staging};
use engine::step::Stage;

use crate::checkpoint::write::{Occasion, copy_blocks, rank_bytes};
use crate::checkpoint::writers::Writers;
use crate::config::CheckpointConfig;
use crate::error::RunError;
use crate::told::tell;

/// Memory for copies of a rank's state. On a GPU it is page-locked: a GPU copies to it beside other work. That is locked
/// once, on a thread of its own. Where it is missing, copies go to ordinary memory, and training waits for them.
#[derive(Default)]
pub(super) struct CopyMemory {
    staging: Staging,
    /// Bytes that are being locked.
    growing: Option<(u64, Growth)>,
    locked: u64,
    /// Whether the run was told that its state cannot be copied.
    told_no_copy: Cell<bool>,
}

impl CopyMemory {
    /// Begins to lock memory for the state on a GPU, if the machine has room. All ranks of the run call it together; of
    /// them `local_ranks` are on this machine.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn lock(&mut self, stage: &Stage, writers: &Writers, local_ranks: usize) -> Result<(), RunError> {
        if !self.has_room(stage, writers, local_ranks) || stage.device().gpu().is_none() {
            return Ok(());
        }
        self.staging = stage.device().staging([])?;
        let blocks = copy_blocks(stage, writers);
        self.growing = Some((blocks.iter().sum::<usize>() as u64, self.staging.grow(blocks)));
        Ok(())
    }

    /// Waits until the memory is locked.
    pub(super) fn wait(&mut self) {
        let Some((needed, growth)) = self.growing.take() else { return };
        match growth.wait() {
            Ok(()) => self.locked = needed,
            Err(error) => {
                let line = format!(
                    "notice: {} for copies of the state cannot be locked: {error}. At saves the run waits until the state is \
                     copied to ordinary memory",
                    bytes(needed as usize)
                );
                tell(&line);
            }
        }
    }

    /// The memory for a save; `None` if the run waits during the writing. All ranks of the run call it together. At the
    /// end of a run nothing goes on beside the save: only memory that is there is used.
    pub(super) fn of_save(
        &mut self,
        settings: &CheckpointConfig,
        occasion: Occasion,
        (stage, writers, local_ranks): (&Stage, &Writers, usize),
    ) -> Option<Staging> {
        self.wait();
        let can_copy = settings.async_save && self.has_room(stage, writers, local_ranks);
        (can_copy && (occasion == Occasion::Interval || self.locked > 0)).then(|| self.staging.clone())
    }

    /// Whether the machine's memory has room for a copy of the state of all ranks there. All ranks of the run call it
    /// together.
    fn has_room(&self, stage: &Stage, writers: &Writers, local_ranks: usize) -> bool {
        let short = self.is_short((stage, writers, local_ranks), 0);
        if short && writers.leads() && !self.told_no_copy.replace(true) {
            tell(
                "notice: the machine's memory has no room for a copy of the state. The run waits while it saves, as with \
                 checkpoint.async_save = false",
            );
        }
        !short
    }

    /// Whether the machine's memory lacks room for a copy of the state of all ranks there and so many bytes `besides`.
    /// All ranks of the run call it together.
    pub(super) fn is_short(&self, (stage, writers, local_ranks): (&Stage, &Writers, usize), besides: u64) -> bool {
        let copy = if self.locked > 0 { 0 } else { rank_bytes(stage, writers) }.saturating_mul(local_ranks as u64);
        let free = stage.device().free_host_memory().map(|free| free as u64);
        (writers.any)(free.is_some_and(|free| free < copy.saturating_add(besides)))
    }
}
