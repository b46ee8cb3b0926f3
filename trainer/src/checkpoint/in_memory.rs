//! States in shared memory: checkpoints of the usual form, written more often, in a folder that lives as long as the
//! supervisor of the run. They serve processes that died on a machine that lives. When the supervisor ends, the last one is
//! copied to the disk.

use std::io::{Error as IoError, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use launch::watch::activity::Activity;
use rayon::prelude::*;

use super::file::CheckpointFile;
use super::folder::{empty_folder, remove_files, steps, temporary};
use super::lock::{CHECKPOINTS, FolderLock};
use super::manifest::{Damage, FileEntry, MANIFEST, Manifest, open};
use super::output::{Output, WriteError};
use super::read::{check_sizes, config};
use super::step_name::step_name;
use super::unfinished::{rename, sync_folder};
use crate::config::CheckpointConfig;
use crate::error::{RunError, file_error};

/// The folder for the states of a run with the given settings; `None` if the run keeps no state in memory.
pub fn state_folder(settings: &CheckpointConfig) -> Option<PathBuf> {
    launch::state_folder().filter(|_| settings.keeps_states())
}

/// The most states that are in memory at once: the newest, and a newer one that is being written.
pub(crate) const MOST_STATES: usize = 2;

/// How many states a run with the given settings may add to the states that are in memory already.
pub(crate) fn states_to_come(settings: &CheckpointConfig) -> usize {
    let there = |folder: PathBuf| steps(&folder).map_or(0, |states| states.len());
    state_folder(settings).map_or(0, |folder| MOST_STATES.saturating_sub(there(folder)))
}

/// The newest state in memory that is newer than `checkpoint.dir`'s newest, and why others were not taken.
#[derive(Default)]
pub(super) struct Newer {
    pub(super) found: Option<(PathBuf, Manifest)>,
    pub(super) refused: Vec<String>,
}

/// Looks in `memory` for the newest state that is newer than `on_disk`, the newest checkpoint in `dir`. It must be one of the
/// run of `dir`, and pass `check`.
pub(super) fn newer_state(
    (memory, dir): (&Path, &Path),
    on_disk: Option<&Manifest>,
    check: impl Fn(&Path) -> Result<Manifest, Damage>,
) -> Newer {
    let mut newer = Newer::default();
    let all = match steps(memory) {
        Ok(all) => all,
        Err(error) => {
            newer.refused.push(format!("states in memory, in {}, cannot be read: {error}", memory.display()));
            return newer;
        }
    };
    for (step, path) in all.into_iter().rev() {
        if on_disk.is_some_and(|on_disk| on_disk.step >= step) {
            break;
        }
        let state = format!("the state in memory after step {step}");
        match check(&path) {
            Err(damage) => newer.refused.push(format!("{state} is damaged and skipped: {damage}")),
            Ok(manifest) if on_disk.is_some_and(|on_disk| on_disk.run != manifest.run) || !is_of(&path, dir) => newer
                .refused
                .push(format!("{state} is skipped: it is of another run than the checkpoints in {}", dir.display())),
            Ok(manifest) => {
                newer.found = Some((path, manifest));
                break;
            }
        }
    }
    newer
}

/// Whether the run that wrote a state has `dir` for checkpoints.
fn is_of(state: &Path, dir: &Path) -> bool {
    let table = config(state).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let named = table.as_ref().and_then(|table| table.get("checkpoint")?.get("dir")?.as_str());
    named.is_some_and(|named| Path::new(named) == dir)
}

/// The checkpoint, or state in `memory`, with the most steps that a run with `dir` as its `checkpoint.dir` continues. Only
/// sizes are checked, not contents.
pub(super) fn newest_of_right_sizes(dir: &Path, memory: Option<&Path>) -> Option<(PathBuf, Manifest)> {
    let complete = |path: PathBuf| check_sizes(&path).ok().map(|manifest| (path, manifest));
    let all = steps(dir).unwrap_or_default().into_iter().rev();
    let on_disk = all.map(|(_, path)| path).find_map(complete);
    let manifest = on_disk.as_ref().map(|(_, manifest)| manifest);
    memory.and_then(|memory| newer_state((memory, dir), manifest, check_sizes).found).or(on_disk)
}

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

/// Copies all files of a state to a new folder, the manifest last, and syncs each file.
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
