//! Old checkpoints are removed while training goes on.

use std::path::Path;
use std::thread::{Builder, JoinHandle};

use common::terminal::warn;

use crate::checkpoint::folder::{Kept, prune};
use crate::checkpoint::read::check_sizes;

/// Removes old checkpoints on a thread of its own. A file system may take long to remove large files.
#[derive(Default)]
pub(super) struct Removal {
    thread: Option<JoinHandle<()>>,
}

impl Removal {
    /// Removes the checkpoints in `dir` of up to `step` steps but these, after the removal before.
    pub(super) fn begin(&mut self, dir: &Path, step: usize, kept: Kept) {
        self.wait();
        let dir = dir.to_path_buf();
        let failed = dir.display().to_string();
        let failed = move |error| warn(&format!("WARNING: old checkpoints in {failed} were not removed: {error}"));
        let work = {
            let failed = failed.clone();
            move || {
                let pruned = prune(&dir, step, &kept, |path| check_sizes(path).is_ok());
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
