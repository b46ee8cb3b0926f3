//! One run in a folder at a time.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::UserError;
use common::files::{open_to_change, open_unlinked, read_at_most};

use crate::error::RunError;

/// A run locks `checkpoint.dir` with this file.
pub(super) const CHECKPOINTS: &str = "checkpoints.lock";

/// The most bytes of a lock file: a process and a mark.
const LARGEST: u64 = 4096;

/// The first word of a lock file. The number of the process follows.
const HOLDER: &str = "process ";

/// A folder that this process has locked. The system releases the lock when the process ends, however it ends. The lock's
/// file is removed with it, also one that a killed run has left, and so is the folder if the lock made it and it is still
/// empty.
pub(super) struct FolderLock {
    _made: Made,
    _file: File,
}

impl FolderLock {
    /// Locks `dir`, named by the option `key`, with the file `name` in it. The file shows others the process that has
    /// the lock, and `mark`.
    ///
    /// # Errors
    /// Another run has the lock; the folder or the file cannot be made.
    pub(super) fn take(dir: &Path, name: &str, key: &str, mark: &str) -> Result<FolderLock, RunError> {
        let path = dir.join(name);
        let failed = |error| RunError::File { what: path.display().to_string(), error };
        let (mut made, mut file) = open(dir, &path).map_err(|error| {
            let what = format!("{key} = {}: {name} cannot be written: {error}", dir.display());
            let fix = format!("set another {key}, or change its permissions");
            UserError::new(what, format!("{key} is a folder a run can write to"), fix)
        })?;
        match file.try_lock() {
            Ok(()) if !is_still(&path, &file) => return FolderLock::take(dir, name, key, mark),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                made.0.clear();
                let text = text_of(&mut file);
                let holder = text.lines().next().unwrap_or("another run");
                let what = format!("{key} = {} is in use by {holder}", dir.display());
                let fix = format!("wait for that run to end, or set another {key}");
                return Err(UserError::new(what, "a folder belongs to one run at a time", fix).into());
            }
            // Some network file systems have no locks. Training goes on without one.
            Err(TryLockError::Error(error)) => tracing::warn!("{} cannot be locked: {error}", path.display()),
        }
        // A killed run has left it. It has no path in `made`, because it was there.
        if text_of(&mut file).starts_with(HOLDER) {
            made.0.insert(0, path.clone());
        }
        file.rewind().and_then(|()| file.set_len(0)).map_err(failed)?;
        // Synced, so that other nodes see it while the file is open.
        let told = writeln!(file, "{HOLDER}{}\n{mark}", std::process::id()).and_then(|()| file.sync_all());
        told.map_err(failed)?;
        Ok(FolderLock { _made: made, _file: file })
    }
}

/// The text of a lock file.
fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.take(LARGEST).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a process has locked `dir` by the file `name` in it.
pub(super) fn is_locked(dir: &Path, name: &str) -> bool {
    open_unlinked(&dir.join(name)).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Makes the lock's folder and file where missing.
fn open(dir: &Path, path: &Path) -> std::io::Result<(Made, File)> {
    let missing = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let made = Made(missing.map(Path::to_path_buf).collect());
    std::fs::create_dir_all(dir)?;
    Ok((made, open_to_change(path)?))
}

/// Whether the path still names this file: another process may have removed its own lock file meanwhile.
fn is_still(path: &Path, file: &File) -> bool {
    let id = |found: &std::fs::Metadata| (found.dev(), found.ino());
    matches!((std::fs::symlink_metadata(path), file.metadata()), (Ok(there), Ok(here)) if id(&there) == id(&here))
}

/// The file and the folders that the lock made, inner folders first.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    /// Folders that are not empty stay.
    fn drop(&mut self) {
        let removed = |path: &PathBuf| std::fs::remove_file(path).or_else(|_| std::fs::remove_dir(path)).is_ok();
        let _ = self.0.iter().all(removed);
    }
}

/// Whether the file `name` in `dir` shows `mark` within `patience`. Another rank wrote it there. A network file system
/// may take a while to show one node the writes of another.
pub(super) fn shows(dir: &Path, name: &str, mark: &str, patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        // Listing a folder makes an NFS client ask the server again.
        for folder in [dir.join(".."), dir.into()] {
            let _ = std::fs::read_dir(folder).map(Iterator::count);
        }
        let text = open_unlinked(&dir.join(name)).and_then(|file| read_at_most(file, LARGEST)).unwrap_or_default();
        if String::from_utf8_lossy(&text).lines().any(|line| line == mark) {
            return true;
        }
        if began.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_shows_late_is_waited_for_and_another_mark_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("new");
        let lock = FolderLock::take(&dir, "lock", "key", "mine").map_err(|error| error.to_string());
        assert!(shows(&dir, "lock", "mine", Duration::ZERO));
        assert!(!shows(&dir, "lock", "other", Duration::ZERO));
        let late = {
            let dir = dir.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                std::fs::write(dir.join("late"), "process 1\nmine\n").unwrap();
            })
        };
        assert!(shows(&dir, "late", "mine", Duration::from_secs(60)));
        late.join().unwrap();
        drop(lock);
        assert!(!dir.join("lock").exists() && dir.exists(), "the folder is no longer empty");
    }

    #[test]
    fn a_lock_removes_what_it_made_and_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, there) = (folder.path().join("a/b"), folder.path().join("lock"));
        std::fs::write(&there, "").unwrap();
        for _ in 0..2 {
            let lock = FolderLock::take(&dir, "lock", "key", "").map_err(|error| error.to_string()).unwrap();
            let second = FolderLock::take(&dir, "lock", "key", "").map(|_| ()).unwrap_err().to_string();
            assert!(second.contains(&format!("in use by process {}.", std::process::id())), "{second}");
            assert!(dir.join("lock").exists(), "a refused lock removes nothing of the holder's");
            assert!(is_locked(&dir, "lock"));
            drop(lock);
            assert!(!is_locked(&dir, "lock"));
            assert!(!folder.path().join("a").exists());
        }
        drop(FolderLock::take(folder.path(), "lock", "key", "").map_err(|error| error.to_string()).unwrap());
        assert!(there.exists());
    }

    #[test]
    fn a_lock_file_that_a_killed_run_left_goes_with_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("lock");
        std::fs::write(&left, "process 4194305\na longer mark than the next one\n").unwrap();
        let lock = FolderLock::take(folder.path(), "lock", "key", "mark").map_err(|error| error.to_string()).unwrap();
        assert_eq!(std::fs::read_to_string(&left).unwrap(), format!("process {}\nmark\n", std::process::id()));
        drop(lock);
        assert!(!left.exists() && folder.path().exists());
    }
}
