//! Files that outlive a run: machine code of kernels, and timed choices.
//!
//! Ranks of several nodes may share a home folder, so several may write a file at once while others read it. Each rank
//! writes a file of its own and renames it. A file ends with the length and a hash of its content. A file without
//! that end, as a full disk, a power cut or a file server may leave it, counts as missing.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::hash::fnv1a;

/// The folder of stored files, in `$XDG_CACHE_HOME` or `~/.cache`. `None` if there is no home.
pub(super) fn folder() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)?;
    Some(base.join("cuda-graph-trainer"))
}

/// The stored content. `None` if there is no file, or a damaged one.
pub(super) fn load(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let length = bytes.len().checked_sub(seal(&[]).len())?;
    if bytes[length..] != *seal(&bytes[..length]).as_bytes() {
        tracing::debug!("{} is damaged, and is replaced", path.display());
        return None;
    }
    bytes.truncate(length);
    Some(bytes)
}

/// Stores `bytes`. They replace an earlier file.
///
/// # Errors
/// The system's; an earlier file stays.
pub(super) fn store(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let temporary = temporary(path);
    let stored = write_new(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if stored.is_err() {
        // Nobody reads a file of this name. The first error is the one that matters.
        let _ = std::fs::remove_file(&temporary);
    }
    stored
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::create_new(path)?;
    file.write_all(bytes)?;
    file.write_all(seal(bytes).as_bytes())?;
    // A delayed write reports its errors here, and not when the file is closed.
    file.sync_all()
}

/// A name that no other process on any node writes to. Containers may have equal process ids, and even equal host
/// names.
fn temporary(path: &Path) -> PathBuf {
    let random = RandomState::new().hash_one(path);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{random:016x}.tmp", std::process::id()));
    name.into()
}

/// The end of a file, in text of fixed length, so that a text file stays a text file.
fn seal(bytes: &[u8]) -> String {
    format!("\n{:016x} {:016x}\n", bytes.len(), fnv1a(bytes.iter().copied()))
}

#[cfg(test)]
mod tests {
    use tempfile::{TempDir, tempdir};

    use super::*;

    /// Names of the files in a folder, sorted.
    fn names(folder: &TempDir) -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_stored_is_loaded_and_replaced_and_nothing_else_stays_in_the_folder() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        assert_eq!(load(&file), None);
        for bytes in [b"first".as_slice(), b"", b"\x7fELF\0\xff"] {
            store(&file, bytes).unwrap();
            assert_eq!(load(&file).as_deref(), Some(bytes));
        }
        assert_eq!(names(&folder), ["a.cubin"]);
    }

    #[test]
    fn a_file_that_lacks_bytes_has_other_bytes_or_has_more_is_no_file() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        store(&file, b"machine code").unwrap();
        let whole = std::fs::read(&file).unwrap();
        let damaged = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            load(&file).is_none()
        };
        assert!((0..whole.len()).all(|length| damaged(&whole[..length])));
        assert!((0..whole.len()).all(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            damaged(&bytes)
        }));
        assert!(damaged(&[whole.as_slice(), b"x"].concat()) && damaged(&vec![0; whole.len()]));
        assert!(!damaged(&whole));
    }

    #[test]
    fn a_file_that_cannot_be_put_in_its_place_leaves_nothing_behind() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        std::fs::create_dir_all(file.join("in the way")).unwrap();
        assert!(store(&file, b"machine code").is_err());
        assert_eq!(names(&folder), ["a.cubin"]);
    }

    #[test]
    fn threads_that_store_one_file_at_once_leave_one_whole_file() {
        let folder = tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        std::thread::scope(|scope| {
            for byte in 0..8u8 {
                let file = &file;
                scope.spawn(move || store(file, &vec![byte; 1 << 16]).unwrap());
            }
        });
        let bytes = load(&file).unwrap();
        assert!(bytes.len() == 1 << 16 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(names(&folder), ["a.cubin"]);
    }
}
