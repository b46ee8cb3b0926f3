//! A state in memory is copied to the disk when its supervisor ends.

use std::io::{Error as IoError, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use launch::watch::activity::Activity;
use rayon::prelude::*;

use super::file::CheckpointFile;
use super::folder::{empty_folder, remove_files, temporary};
use super::in_memory::{newer_state, newest_of_right_sizes};
use super::lock::{CHECKPOINTS, FolderLock};
use super::manifest::{FileEntry, MANIFEST, Manifest, open};
use super::output::{Output, WriteError};
use super::read::check_sizes;
use super::step_name::step_name;
use super::unfinished::{rename, sync_folder};
use crate::error::{RunError, file_error};

/// Bytes of a file that are copied at once.
const BLOCK: u64 = 64 << 20;

/// Copies the newest state in `memory` to `dir`, a run's `checkpoint.dir`, as a checkpoint, if it is newer than those there.
/// Returns the checkpoint, and why newer states were not taken. The caller knows that the run has ended.
///
/// # Errors
/// Another run has the folder; files that are damaged, or cannot be read or written. Nothing half written stays.
pub fn copy_newest_state(memory: &Path, dir: &Path) -> Result<(Option<PathBuf>, Vec<String>), RunError> {
    let on_disk = newest_of_right_sizes(dir, None).map(|(_, manifest)| manifest);
    // Contents are compared while they are copied.
    let newer = newer_state((memory, dir), on_disk.as_ref(), check_sizes);
    let Some((state, manifest)) = newer.found else { return Ok((None, newer.refused)) };
    let _lock = FolderLock::take(dir, CHECKPOINTS, "checkpoint.dir", "")?;
    let path = dir.join(step_name(manifest.step));
    let folder = temporary(&path);
    let copied = copy(&state, &manifest, &folder)
        .and_then(|()| rename(&folder, &path).map_err(|error| WriteError(path.clone(), error)));
    copied.map_err(|WriteError(file, error)| {
        let _ = remove_files(&folder);
        file_error(file.display().to_string())(error)
    })?;
    Ok((Some(path), newer.refused))
}

/// Copies all files of a state to a new folder and syncs them, the manifest last.
fn copy(state: &Path, manifest: &Manifest, folder: &Path) -> Result<(), WriteError> {
    empty_folder(folder).map_err(|error| WriteError(folder.into(), error))?;
    manifest.files.par_iter().try_for_each(|entry| match copy_file(state, &entry.name, folder)? == *entry {
        true => Ok(()),
        false => Err(damaged(state, &entry.name, "it is not what its manifest says".into())),
    })?;
    copy_file(state, MANIFEST, folder)?;
    sync_folder(folder).map_err(|error| WriteError(folder.into(), error))
}

/// Copies a file and syncs it. Returns what was written.
fn copy_file(state: &Path, name: &str, folder: &Path) -> Result<FileEntry, WriteError> {
    let file = CheckpointFile::named(name).ok_or_else(|| damaged(state, name, "no checkpoint has it".into()))?;
    let mut from = open(state, name).map_err(|damage| damaged(state, name, damage.problem))?;
    let activity = Activity::default();
    let mut output = Output::create(folder, file, &activity)?;
    loop {
        let mut block = Vec::new();
        let read = from.by_ref().take(BLOCK).read_to_end(&mut block);
        if read.map_err(|error| WriteError(state.join(name), error))? == 0 {
            return Ok(output.finish()?.0);
        }
        output.write(Arc::new(block))?;
    }
}

fn damaged(state: &Path, name: &str, problem: String) -> WriteError {
    WriteError(state.join(name), IoError::other(problem))
}
