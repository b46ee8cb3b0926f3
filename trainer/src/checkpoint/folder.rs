//! The folder that holds a run's checkpoints.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use common::UserError;
use common::format::bytes;
use launch::watch::activity::Activity;

use super::layout::is_file_name;
use super::manifest::{Damage, MANIFEST, Manifest};
use super::read::verify;

/// The name of the checkpoint after so many steps.
pub(super) fn step_name(step: usize) -> String {
    format!("step-{step:08}")
}

/// The folder of a checkpoint that is being written.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Removes a checkpoint. It is renamed first, so that no half-removed folder has a checkpoint's name.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    if !is_ours(path)? {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "it holds files that no checkpoint has"));
    }
    let renamed = path.with_extension("old.tmp");
    std::fs::rename(path, &renamed)?;
    std::fs::remove_dir_all(renamed)
}

/// What a folder's name says of it.
enum FolderName {
    /// A checkpoint after so many steps.
    Checkpoint(usize),
    /// A checkpoint that is being written or removed.
    Temporary,
}

/// What a path's last part says; `None` unless it is exactly a name that this module gives.
fn folder_name(path: &Path) -> Option<FolderName> {
    let name = path.file_name()?.to_str()?;
    let digits = |text: &str| text.parse().ok().filter(|step| step_name(*step).strip_prefix("step-") == Some(text));
    let rest = name.strip_prefix("step-")?;
    match rest.strip_suffix(".old.tmp").or(rest.strip_suffix(".tmp")) {
        Some(rest) => digits(rest).map(|_| FolderName::Temporary),
        None => digits(rest).map(FolderName::Checkpoint),
    }
}

/// Whether a run wrote a folder of such a name: it has a manifest, or only files that checkpoints have.
fn is_ours(path: &Path) -> std::io::Result<bool> {
    if !path.is_dir() {
        return Ok(false);
    }
    let all = entries(path)?;
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
    Ok(all.iter().any(|file| name(file) == MANIFEST) || all.iter().all(|file| is_file_name(&name(file))))
}

/// All checkpoints of a folder, complete or not, by steps. A missing folder has none.
pub(super) fn steps(dir: &Path) -> std::io::Result<Vec<(usize, PathBuf)>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        if let Some(FolderName::Checkpoint(step)) = folder_name(&path)
            && is_ours(&path)?
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
        if folder_name(&path).is_some() && !is_ours(&path)? {
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
        if matches!(folder_name(&path), Some(FolderName::Temporary)) && is_ours(&path)? {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The newest complete checkpoint, and what is wrong with each newer one.
pub(super) type Newest = (Option<(PathBuf, Manifest)>, Vec<(PathBuf, Damage)>);

/// The newest checkpoint that passes [`verify`].
///
/// # Errors
/// A newer checkpoint that may be complete but cannot be read, either now or by this build.
pub(super) fn newest(dir: &Path, activity: &Activity) -> std::io::Result<Newest> {
    let mut damaged = Vec::new();
    for (_, path) in steps(dir)?.into_iter().rev() {
        match verify(&path, activity) {
            Ok(manifest) => return Ok((Some((path, manifest)), damaged)),
            // A run that started from an older one would overwrite it.
            Err(damage) if damage.may_be_complete => {
                return Err(std::io::Error::other(format!("{} is the newest, and {damage}", path.display())));
            }
            Err(damage) => damaged.push((path, damage)),
        }
    }
    Ok((None, damaged))
}

/// The folder of the model that `path` names: the newest complete checkpoint of a folder of them, else `path` itself.
/// Every byte of a checkpoint is checked.
///
/// # Errors
/// A folder that is missing or cannot be read; only damaged checkpoints.
pub fn newest_in(path: &Path) -> Result<PathBuf, UserError> {
    let shown = path.display();
    let rule = "it names a checkpoint, a folder of them, or a Hugging Face model";
    let wrong =
        |error: std::io::Error| UserError::new(format!("{shown} cannot be read: {error}"), rule, "check the path");
    std::fs::read_dir(path).map_err(wrong)?;
    if path.join(MANIFEST).exists() {
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
    let (found, damaged) = newest(path, &Activity::default()).map_err(wrong)?;
    match (found, damaged.first()) {
        (Some((newest, _)), _) => Ok(newest),
        (None, Some((newest, damage))) => {
            let what = format!("{shown} holds no complete checkpoint: {} is damaged: {damage}", newest.display());
            Err(UserError::new(what, rule, "name another folder"))
        }
        (None, None) => Ok(path.into()),
    }
}

/// Removes this run's older checkpoints. Of those of up to `step` steps the newest `keep` complete ones stay; 0 keeps all.
/// `complete` says which checkpoints are. Checkpoints of other runs, or of unknown runs, stay.
pub(super) fn prune(
    dir: &Path,
    step: usize,
    keep: usize,
    run: Option<&str>,
    complete: impl Fn(&Path) -> bool,
) -> std::io::Result<()> {
    let ours = |path: &PathBuf| Manifest::read(path).is_ok_and(|manifest| manifest.run.as_deref() == run);
    let older = steps(dir)?.into_iter().rev().filter(|(of, _)| *of <= step).map(|(_, path)| path);
    let all: Vec<PathBuf> = older.filter(ours).collect();
    if keep == 0 || all.len() <= keep {
        return Ok(());
    }
    let mut kept = 0;
    for path in all {
        if kept >= keep {
            remove(&path)?;
        } else if complete(&path) {
            kept += 1;
        }
    }
    Ok(())
}

/// A line for each checkpoint of a folder, or for one checkpoint, and whether all are complete. Every byte is checked.
///
/// # Errors
/// A folder that cannot be read, or holds no checkpoint.
pub fn list(dir: &Path) -> Result<(String, bool), UserError> {
    let wrong = |problem: String| {
        let what = format!("{} {problem}", dir.display());
        UserError::new(what, "checkpoints are folders named step-00001000", "give the checkpoint.dir of a run")
    };
    if !dir.exists() {
        return Err(wrong("does not exist".into()));
    }
    let mut found = steps(dir).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if found.is_empty() && dir.join(MANIFEST).exists() {
        found.push((0, dir.into()));
    }
    if found.is_empty() {
        return Err(wrong("holds no checkpoint".into()));
    }
    let mut complete = true;
    let mut line = |path: &Path| match verify(path, &Activity::default()) {
        Ok(manifest) => format!(
            "complete, {} steps, {} samples, {}, {} updates applied, {} skipped",
            manifest.step,
            manifest.samples,
            bytes(manifest.bytes() as usize),
            manifest.applied,
            manifest.skipped
        ),
        Err(damage) => {
            complete = false;
            format!("damaged: {damage}")
        }
    };
    let text = found.iter().map(|(_, path)| format!("{}  {}\n", path.display(), line(path))).collect();
    Ok((text, complete))
}
