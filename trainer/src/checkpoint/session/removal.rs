//! Old checkpoints are removed while training goes on.

use std::path::Path;
use std::thread::{Builder, JoinHandle};

use crate::told::tell;

/// Removes old checkpoints on a separate thread. A file system may take long to remove large files.
#[derive(Default)]
pub(super) struct Removal {
    thread: Option<JoinHandle<()>>,
}

impl Removal {
    /// Does `work`, which removes checkpoints in `dir`, after the removal before.
    pub(super) fn begin(&mut self, dir: &Path, work: impl FnOnce(&Path) -> std::io::Result<()> + Send + 'static) {
        self.wait();
        let dir = dir.to_path_buf();
        let failed = dir.display().to_string();
        let failed = move |error| tell(&format!("WARNING: old checkpoints in {failed} were not removed: {error}"));
        let work = {
            let failed = failed.clone();
            move || work(&dir).unwrap_or_else(failed)
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
