//! The states that a run keeps in shared memory between its checkpoints.

use std::cell::Cell;
use std::path::PathBuf;

use common::format::bytes;

use super::removal::Removal;
use crate::checkpoint::folder::remove_all_but;
use crate::checkpoint::in_memory::state_folder;
use crate::config::CheckpointConfig;
use crate::error::SaveError;
use crate::process_group::ProcessGroup;
use crate::told::tell;

/// Where a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In `checkpoint.dir`.
    Disk,
    /// In the supervisor's folder in shared memory.
    Memory,
}

/// The states in memory. The newest one stays until a newer one, or a newer checkpoint on disk, is complete.
pub(super) struct States {
    pub(super) folder: PathBuf,
    removal: Removal,
    /// Whether this rank has said that a state does not get there.
    has_warned: Cell<bool>,
}

impl States {
    /// The states of a run with the given settings; `None` if the run keeps no states. All ranks call it together.
    pub(super) fn open(settings: &CheckpointConfig, group: &ProcessGroup) -> Option<States> {
        if !settings.keeps_states() {
            return None;
        }
        let folder = state_folder(settings);
        if group.control.any(folder.is_none()) {
            if group.rank() == 0 {
                tell(
                    "notice: checkpoint.memory_interval has no effect: only `trainer supervise` starts a run again from \
                     memory, and this run sees no folder of it",
                );
            }
            return None;
        }
        folder.map(|folder| States { folder, removal: Removal::default(), has_warned: Cell::new(false) })
    }

    /// Begins to remove all states but that of `kept` steps, because a newer state or checkpoint is complete.
    pub(super) fn remove_all_but(&mut self, kept: Option<usize>) {
        self.removal.begin(&self.folder, move |folder| remove_all_but(folder, kept));
    }

    /// Waits until nothing is being removed.
    pub(super) fn end_removal(&mut self) {
        self.removal.wait();
    }

    /// Says that the state after so many steps is not in memory, and why. Later ones are told to the log alone: they mostly
    /// fail for the same reason.
    pub(super) fn warn_once(&self, step: usize, why: &str) {
        let what = format!("the state after step {step} is not in memory: {why}");
        if self.has_warned.replace(true) {
            return tracing::info!("{what}");
        }
        let line = format!(
            "WARNING: {what}. The run continues; after a failure it goes on from an earlier state or checkpoint"
        );
        tell(&line);
    }
}

/// Why a state could not be written to memory.
pub(super) fn why(error: &SaveError) -> String {
    match error {
        SaveError::Space { path, needed, free } => {
            let folder = path.parent().unwrap_or(path).display();
            format!("it needs {}, {} are free in {folder}", bytes(*needed as usize), bytes(*free as usize))
        }
        SaveError::Write { path, error, .. } => format!("{}: {error}", path.display()),
        other => other.to_string(),
    }
}
