//! A folder in shared memory for the state of a supervised run. It lives as long as its supervisor.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shared_memory::SHARED_MEMORY;

/// The first part of the folders' names.
const PREFIX: &str = "trainer-state-";

/// The environment variable that tells a run the state folder.
const VARIABLE: &str = "TRAINER_STATE_FOLDER";

/// The last part of the name of a folder that outlives the supervisor.
const KEPT: &str = "kept";

/// The folder that the supervisor of this process made for the run's state; `None` without a supervisor, or if this
/// process does not see the folder.
pub fn state_folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from).filter(|folder| folder.is_dir())
}

/// Tells a command of the run's folder, or that the run has none: the folder of another supervisor is not its own.
pub fn give_state_folder(folder: Option<&StateFolder>, command: &mut Command) {
    match folder {
        Some(folder) => command.env(VARIABLE, &folder.path),
        None => command.env_remove(VARIABLE),
    };
}

/// A folder that goes with this value. This process has it locked: so others know that it is in use, also in containers
/// that number processes in another way.
pub struct StateFolder {
    path: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Makes an empty folder in shared memory that this user alone can enter.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make() -> io::Result<StateFolder> {
        StateFolder::make_in(Path::new(SHARED_MEMORY))
    }

    pub(crate) fn make_in(shared: &Path) -> io::Result<StateFolder> {
        loop {
            let random = RandomState::new().build_hasher().finish(); // the system seeds it
            let path = shared.join(format!("{PREFIX}{}-{random:016x}", std::process::id()));
            DirBuilder::new().mode(0o700).create(&path)?;
            // Another supervisor that starts now may take the folder for a dead one's until it is locked.
            if let Some(lock) = lock(&path)? {
                return Ok(StateFolder { path, _lock: lock });
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder, with all files, under another name, so that no supervisor removes the folder. Returns the name.
    ///
    /// # Errors
    /// The operating system's. Then the folder is gone.
    pub fn leave(self) -> io::Result<PathBuf> {
        let kept = self.path.with_extension(KEPT);
        std::fs::rename(&self.path, &kept)?;
        Ok(kept)
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // it was left under another name
            Err(error) => tracing::warn!("{} was not removed: {error}", self.path.display()),
        }
    }
}

/// Removes a folder of [`StateFolder`] if the folder's supervisor is dead. Returns whether it did.
pub(crate) fn remove_if_dead(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(PREFIX));
    let is_named = name.and_then(|name| name.split_once('-')).is_some_and(|(process, random)| {
        process.parse::<u32>().is_ok() && random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    // The lock is held until the folder is gone.
    let lock = is_named.then(|| lock(path)).and_then(Result::ok).flatten();
    lock.is_some() && std::fs::remove_dir_all(path).is_ok()
}

/// Locks a folder. The system releases the lock when the process ends, however it ends. `None` if another process has it,
/// or has removed it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let folder = match File::open(path) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match folder.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let id = |found: std::fs::Metadata| (found.dev(), found.ino());
    let there = std::fs::symlink_metadata(path).map(id);
    Ok((there.ok() == Some(id(folder.metadata()?))).then_some(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_this_users_alone_and_goes_with_its_files() {
        let shared = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let folder = StateFolder::make_in(shared.path()).unwrap();
        let path = folder.path().to_path_buf();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::create_dir(path.join("step")).unwrap();
        std::fs::write(path.join("step/file"), "state").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn folders_of_dead_supervisors_are_removed_and_no_others() {
        let shared = tempfile::tempdir_in(SHARED_MEMORY).unwrap();
        let alive = StateFolder::make_in(shared.path()).unwrap();
        let left = StateFolder::make_in(shared.path()).unwrap().leave().unwrap();
        let named = |name: &str| {
            let path = shared.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let dead = named("trainer-state-1-0123456789abcdef");
        std::fs::write(dead.join("file"), "state").unwrap();
        let others = ["trainer-state-1", "trainer-state-1-short", "trainer-state-x-0123456789abcdef"].map(named);
        assert!(remove_if_dead(&dead) && !dead.exists());
        for path in others.iter().map(PathBuf::as_path).chain([left.as_path(), alive.path()]) {
            assert!(!remove_if_dead(path) && path.exists(), "{}", path.display());
        }
        assert!(lock(alive.path()).unwrap().is_none(), "it is locked");
    }
}
