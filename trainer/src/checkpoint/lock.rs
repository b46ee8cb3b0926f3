//! One run in a folder at a time.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use crate::config::UserError;
use crate::run::RunError;

/// A folder taken by this process. The system gives it back when the process ends, however it ends.
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes `dir`, which the option `key` names, through the file `name` in it.
    ///
    /// # Errors
    /// Another run has it; the folder or the file cannot be made.
    pub(super) fn take(dir: &Path, name: &str, key: &str) -> Result<FolderLock, RunError> {
        let path = dir.join(name);
        let failed = |error| RunError::File { what: path.display().to_string(), error };
        let opened = std::fs::create_dir_all(dir)
            .and_then(|()| File::options().read(true).write(true).create(true).truncate(false).open(&path));
        let mut file = opened.map_err(|error| {
            let what = format!("{key} = {}: {name} cannot be written: {error}", dir.display());
            let fix = format!("set another {key}, or mend its permissions");
            UserError::new(what, format!("{key} is a folder a run can write to"), fix)
        })?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0).map_err(failed)?;
                writeln!(file, "process {}", std::process::id()).map_err(failed)?;
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = if holder.is_empty() { "another run" } else { holder.trim() };
                let what = format!("{key} = {} is in use by {holder}", dir.display());
                let fix = format!("wait for that run to end, or set another {key}");
                return Err(UserError::new(what, "a folder belongs to one run at a time", fix).into());
            }
            // Some network file systems have no locks. That is no reason not to train.
            Err(TryLockError::Error(error)) => tracing::warn!("{} cannot be locked: {error}", path.display()),
        }
        Ok(FolderLock { _file: file })
    }
}
