//! Old checkpoints are removed while training goes on.

use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};

use common::terminal::warn;

use crate::checkpoint::folder::prune;
use crate::checkpoint::read::check_sizes;

/// Removes old checkpoints on a thread of its own. A file system may take long to remove large files.
#[derive(Default)]
pub(super) struct Removal {
    thread: Option<JoinHandle<()>>,
}

/// The checkpoints that stay.
pub(super) struct Kept {
    /// The folder of the run's checkpoints.
    pub(super) dir: PathBuf,
    /// Checkpoints of more steps stay.
    pub(super) step: usize,
    /// The number of complete ones that stay.
    pub(super) keep: usize,
    /// The name of the run. Those of other runs stay.
    pub(super) run: Option<String>,
}

impl Removal {
    /// Removes all checkpoints but these, after the removal before.
    pub(super) fn begin(&mut self, kept: Kept) {
        self.wait();
        let Kept { dir, step, keep, run } = kept;
        let failed = dir.display().to_string();
        let failed = move |error| warn(&format!("WARNING: old checkpoints in {failed} were not removed: {error}"));
        let work = {
            let failed = failed.clone();
            move || {
                let pruned = prune(&dir, step, keep, run.as_deref(), |path| check_sizes(path).is_ok());
                pruned.unwrap_or_else(failed);
            }
        };
        match Builder::new().name("old checkpoints".into()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => failed(error),
        }
    }

    /// Waits until nothing is being removed.
    pub(super) fn wait(&mut self) {
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}
