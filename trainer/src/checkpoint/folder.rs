//! The folder that holds a run's checkpoints.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use common::UserError;
use common::format::{bytes, counted};
use data::Tokenizer;
use launch::watch::activity::Activity;

use super::file::CheckpointFile;
use super::manifest::{Damage, Extent, MANIFEST, Manifest};
use super::read::{check_sizes, verify};
use super::step_name::{FolderName, folder_name, step_of};
use super::validated::ValidationEntry;

/// The folder of a checkpoint that is being written.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Makes the folder, empty. Files in it that no checkpoint has stay, and are an error.
pub(super) fn empty_folder(folder: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(folder).is_ok() {
        remove_files(folder)?;
    }
    std::fs::create_dir(folder)
}

/// Removes a checkpoint. It is renamed first, so that no half-removed folder has a checkpoint's name. One that holds files of
/// somebody else keeps all of them under another name, `step-00001000.kept-1` or the next free number.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    if !is_folder_of_ours(path)? {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "it is not a checkpoint"));
    }
    if !has_only_our_files(path)? {
        let kept = |number: usize| path.with_extension(format!("kept-{number}"));
        let free = (1..).map(kept).find(|path| std::fs::symlink_metadata(path).is_err());
        return free.map_or(Ok(()), |free| std::fs::rename(path, free));
    }
    let renamed = path.with_extension("old.tmp");
    if std::fs::symlink_metadata(&renamed).is_ok() {
        remove_files(&renamed)?;
    }
    std::fs::rename(path, &renamed)?;
    remove_files(&renamed)
}

/// Removes a folder of a checkpoint's files, and nothing else.
///
/// # Errors
/// Operating system errors; the folder holds other files, which stay.
pub(super) fn remove_files(folder: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(folder)?.is_symlink() {
        return std::fs::remove_file(folder); // the link alone
    }
    for path in entries(folder)? {
        if is_our_file(&path)? {
            std::fs::remove_file(path)?;
        }
    }
    std::fs::remove_dir(folder)
}

/// Whether a run wrote a folder of a checkpoint's name: it has a manifest, or only files that checkpoints have. Users may have
/// put files of their own beside a manifest.
fn is_folder_of_ours(path: &Path) -> std::io::Result<bool> {
    Ok(path.is_dir() && (std::fs::symlink_metadata(path.join(MANIFEST)).is_ok() || has_only_our_files(path)?))
}

/// Whether a folder has only files that checkpoints have.
fn has_only_our_files(folder: &Path) -> std::io::Result<bool> {
    for path in entries(folder)? {
        if !is_our_file(&path)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the path has the name of a checkpoint's file and is no folder.
fn is_our_file(path: &Path) -> std::io::Result<bool> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.and_then(CheckpointFile::named).is_some() && !std::fs::symlink_metadata(path)?.is_dir())
}

/// Whether the path, named as `name`, is a checkpoint, complete or begun. A begun one must hold nothing but a
/// checkpoint's files, because all of it is removed some day.
fn is_ours(path: &Path, name: FolderName) -> std::io::Result<bool> {
    match name {
        FolderName::Checkpoint(_) => is_folder_of_ours(path),
        FolderName::Temporary => Ok(std::fs::symlink_metadata(path)?.is_dir() && has_only_our_files(path)?),
    }
}

/// All checkpoints of a folder, complete or not, by steps. A missing folder has none.
pub(super) fn steps(dir: &Path) -> std::io::Result<Vec<(usize, PathBuf)>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        if let Some(name @ FolderName::Checkpoint(step)) = folder_name(&path)
            && is_ours(&path, name)?
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// A path in a folder that has a checkpoint's name but is none. A checkpoint could not be written there.
pub(super) fn foreign(dir: &Path) -> std::io::Result<Option<PathBuf>> {
    for path in entries(dir)? {
        if let Some(name) = folder_name(&path)
            && !is_ours(&path, name)?
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn entries(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes the checkpoints that a dead process left half written or half removed, and nothing else.
pub(super) fn clean(dir: &Path) -> std::io::Result<()> {
    for path in entries(dir)? {
        if let Some(name @ FolderName::Temporary) = folder_name(&path)
            && is_ours(&path, name)?
        {
            remove_files(&path)?;
        }
    }
    Ok(())
}

/// The newest complete checkpoint, and the damage of each newer one.
pub(super) type Newest = (Option<(PathBuf, Manifest)>, Vec<(PathBuf, Damage)>);

/// Why no newest checkpoint was found. A run that started from an older one would overwrite the newest.
pub(super) enum Unclear {
    /// The folder, or a newer checkpoint that may be complete, cannot be read, either now or by this build.
    Unreadable(std::io::Error),
    /// A newer checkpoint has links or other things in place of files.
    NotFiles(UserError),
}

impl From<std::io::Error> for Unclear {
    fn from(error: std::io::Error) -> Unclear {
        Unclear::Unreadable(error)
    }
}

/// The newest checkpoint that passes [`verify`].
///
/// # Errors
/// See [`Unclear`].
pub(super) fn newest(dir: &Path, activity: &Activity) -> Result<Newest, Unclear> {
    let mut damaged = Vec::new();
    for (_, path) in steps(dir)?.into_iter().rev() {
        match verify(&path, activity) {
            Ok(manifest) => return Ok((Some((path, manifest)), damaged)),
            Err(damage) => match damage.extent {
                Extent::Lost => damaged.push((path, damage)),
                Extent::Unreadable => {
                    return Err(std::io::Error::other(format!("{} is the newest, and {damage}", path.display())).into());
                }
                Extent::NotFiles => {
                    return Err(Unclear::NotFiles(UserError::new(
                        format!("{} is the newest, and {damage}", path.display()),
                        "a checkpoint is read as the trainer wrote it, and nothing outside of its folder is read",
                        "put the files themselves there, or move that checkpoint away to continue the one before it",
                    )));
                }
            },
        }
    }
    Ok((None, damaged))
}

/// The folder of the model that `path` names: the newest complete checkpoint of a folder of them, the [best](named), else
/// `path` itself.
/// Every byte of a checkpoint is checked.
///
/// # Errors
/// A folder that is missing or cannot be read; only damaged checkpoints.
pub fn newest_in(path: &Path) -> Result<PathBuf, UserError> {
    let path = &named(path);
    let shown = path.display();
    let rule = "it names a checkpoint, a folder of them, or a Hugging Face model";
    let wrong =
        |error: std::io::Error| UserError::new(format!("{shown} cannot be read: {error}"), rule, "check the path");
    std::fs::read_dir(path).map_err(wrong)?;
    // A checkpoint without its manifest is damaged, and no folder of another kind.
    if path.join(MANIFEST).exists() || (step_of(path).is_some() && !path.join("config.json").exists()) {
        let other = "name another (`trainer checkpoint list DIR` checks them all)";
        verify(path, &Activity::default()).map_err(|damage| {
            UserError::new(
                format!("checkpoint {shown} is damaged: {damage}"),
                "a checkpoint has the hashes of its manifest",
                other,
            )
        })?;
        return Ok(path.into());
    }
    let (found, damaged) = newest(path, &Activity::default()).map_err(|unclear| match unclear {
        Unclear::Unreadable(error) => wrong(error),
        Unclear::NotFiles(error) => error,
    })?;
    match (found, damaged.first()) {
        (Some((newest, _)), _) => Ok(newest),
        (None, Some((newest, damage))) => {
            let what = format!("{shown} holds no complete checkpoint: {} is damaged: {damage}", newest.display());
            Err(UserError::new(what, rule, "name another folder"))
        }
        (None, None) => Ok(path.into()),
    }
}

/// The checkpoints of a run that stay when others are removed.
pub(super) struct Kept {
    /// The name of the run.
    pub(super) run: Option<String>,
    /// How many of the newest complete checkpoints stay; 0 for all.
    pub(super) newest: usize,
    /// Whether the one with the lowest validation loss stays too.
    pub(super) best: bool,
}

/// Removes a run's older checkpoints, of up to `step` steps, except what `keep` names. `complete` tells whether a
/// checkpoint is complete. Checkpoints of other or unknown runs stay, and so do those with files of somebody else.
pub(super) fn prune(dir: &Path, step: usize, keep: &Kept, complete: impl Fn(&Path) -> bool) -> std::io::Result<()> {
    let ours = |path: &PathBuf| Manifest::read(path).is_ok_and(|manifest| manifest.run == keep.run);
    let older = steps(dir)?.into_iter().rev().filter(|(of, _)| *of <= step).map(|(_, path)| path);
    let all: Vec<PathBuf> = older.filter(ours).collect();
    if keep.newest == 0 || all.len() <= keep.newest {
        return Ok(());
    }
    let best = if keep.best { best_of(&all, &complete) } else { None };
    let mut kept = 0;
    for path in &all {
        if kept >= keep.newest {
            if best != Some(path) && has_only_our_files(path)? {
                remove(path)?;
            }
        } else if complete(path) {
            kept += 1;
        }
    }
    Ok(())
}

/// Removes all checkpoints of a folder but that of `kept` steps.
pub(super) fn remove_all_but(dir: &Path, kept: Option<usize>) -> std::io::Result<()> {
    steps(dir)?.iter().filter(|(step, _)| Some(*step) != kept).try_for_each(|(_, path)| remove(path))
}

/// The complete checkpoint with the lowest validation loss; the first of equal checkpoints. `None` if none was evaluated.
fn best_of<'p>(all: &'p [PathBuf], complete: impl Fn(&Path) -> bool) -> Option<&'p PathBuf> {
    let loss = |path: &'p PathBuf| Some((Manifest::read(path).ok()?.validation?.loss()?, path));
    let losses = all.iter().filter(|path| complete(path)).filter_map(loss);
    losses.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, path)| path)
}

/// The folder that a user's name of a checkpoint stands for: `DIR/best` is the checkpoint with the lowest validation loss in
/// `DIR`, any other path itself.
pub fn named(path: &Path) -> PathBuf {
    let dir = path.parent().filter(|_| path.file_name().is_some_and(|name| name == "best") && !path.exists());
    let all: Vec<PathBuf> = dir.and_then(|dir| steps(dir).ok()).into_iter().flatten().map(|(_, path)| path).collect();
    best_of(&all, |path| check_sizes(path).is_ok()).map_or_else(|| path.to_path_buf(), PathBuf::clone)
}

/// What a user's name of a tokenizer stands for: of a folder of checkpoints the newest that has all of its bytes, of
/// `DIR/best` the [best](named), any other name itself.
pub fn named_tokenizer(name: &str) -> String {
    let path = named(Path::new(name));
    let is_whole = |path: &PathBuf| check_sizes(path).is_ok();
    let newest = || steps(&path).unwrap_or_default().into_iter().rev().map(|(_, path)| path).find(is_whole);
    let newest = if name == "byte" || Tokenizer::is_in(&path) { None } else { newest() };
    newest.unwrap_or(path).display().to_string()
}

/// The validation loss of a checkpoint in words; empty without an evaluation.
fn loss_of(manifest: &Manifest) -> String {
    let loss = manifest.validation.as_ref().and_then(ValidationEntry::loss);
    loss.map_or(String::new(), |loss| format!(", validation loss {loss:.4}"))
}

/// A line for each checkpoint of a folder, or for one checkpoint, and whether all are complete. Every byte is checked.
///
/// # Errors
/// A folder that cannot be read, or holds no checkpoint.
pub fn list(dir: &Path) -> Result<(String, bool), UserError> {
    let dir = &named(dir);
    let wrong = |problem: String| {
        let what = format!("{} {problem}", dir.display());
        UserError::new(what, "checkpoints are folders named step-00001000", "give the checkpoint.dir of a run")
    };
    if !dir.exists() {
        return Err(wrong("does not exist".into()));
    }
    let mut found = steps(dir).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if found.is_empty() && (dir.join(MANIFEST).exists() || step_of(dir).is_some()) {
        found.push((0, dir.into()));
    }
    if found.is_empty() {
        return Err(wrong("holds no checkpoint".into()));
    }
    let all: Vec<PathBuf> = found.iter().map(|(_, path)| path.clone()).collect();
    let best = best_of(&all, |path| check_sizes(path).is_ok());
    let mut complete = true;
    let mut line = |path: &Path| match verify(path, &Activity::default()) {
        Ok(manifest) => format!(
            "complete, {}, {}, {}, {} applied, {} skipped{}{}",
            counted(manifest.step, "step"),
            counted(manifest.samples as usize, "sample"),
            bytes(manifest.bytes() as usize),
            counted(manifest.applied as usize, "update"),
            manifest.skipped + manifest.spikes.as_ref().map_or(0, |spikes| spikes.skipped),
            loss_of(&manifest),
            if best.is_some_and(|best| best == path) { ", the best" } else { "" }
        ),
        Err(damage) => {
            complete = false;
            format!("damaged: {damage}")
        }
    };
    let text = found.iter().map(|(_, path)| format!("{}  {}\n", path.display(), line(path))).collect();
    Ok((text, complete))
}
