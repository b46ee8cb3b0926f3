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

/// Where a checkpoint lies while it is written or removed.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Removes a checkpoint. It loses its name first, so that none is ever seen half removed.
pub(super) fn remove(path: &Path) -> std::io::Result<()> {
    if !is_ours(path)? {
        return Err(std::io::Error::new(ErrorKind::AlreadyExists, "it holds what no checkpoint has"));
    }
    let doomed = path.with_extension("old.tmp");
    std::fs::rename(path, &doomed)?;
    std::fs::remove_dir_all(doomed)
}

/// A name of [`step_name`], or of what such a folder is called while it is written or removed.
enum Named {
    Checkpoint(usize),
    Temporary,
}

/// What a path's last part says; none where it is not exactly a name that we give.
fn named(path: &Path) -> Option<Named> {
    let name = path.file_name()?.to_str()?;
    let digits = |text: &str| text.parse().ok().filter(|step| step_name(*step).strip_prefix("step-") == Some(text));
    let rest = name.strip_prefix("step-")?;
    match rest.strip_suffix(".old.tmp").or(rest.strip_suffix(".tmp")) {
        Some(rest) => digits(rest).map(|_| Named::Temporary),
        None => digits(rest).map(Named::Checkpoint),
    }
}

/// Whether a folder of such a name was written by a run: it has a manifest, or nothing that a checkpoint has not.
fn is_ours(path: &Path) -> std::io::Result<bool> {
    if !path.is_dir() {
        return Ok(false);
    }
    let all = entries(path)?;
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
    Ok(all.iter().any(|file| name(file) == MANIFEST) || all.iter().all(|file| is_file_name(&name(file))))
}

/// All checkpoints of a folder, complete or not, by steps. A folder that is not there has none.
pub(super) fn steps(dir: &Path) -> std::io::Result<Vec<(usize, PathBuf)>> {
    let mut found = Vec::new();
    for path in entries(dir)? {
        if let Some(Named::Checkpoint(step)) = named(&path)
            && is_ours(&path)?
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// What has a checkpoint's name in a folder and is none. It would be in the way of one.
pub(super) fn foreign(dir: &Path) -> std::io::Result<Option<PathBuf>> {
    for path in entries(dir)? {
        if named(&path).is_some() && !is_ours(&path)? {
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

/// Removes what a process that died left half written or half removed, and nothing else.
pub(super) fn clean(dir: &Path) -> std::io::Result<()> {
    for path in entries(dir)? {
        if matches!(named(&path), Some(Named::Temporary)) && is_ours(&path)? {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The newest checkpoint that passes [`verify`], and what is wrong with each newer one. One that cannot be read now, or by
/// this build, is an error: it may be whole.
pub(super) type Newest = (Option<(PathBuf, Manifest)>, Vec<(PathBuf, Damage)>);

pub(super) fn newest(dir: &Path, activity: &Activity) -> std::io::Result<Newest> {
    let mut damaged = Vec::new();
    for (_, path) in steps(dir)?.into_iter().rev() {
        match verify(&path, activity) {
            Ok(manifest) => return Ok((Some((path, manifest)), damaged)),
            // A run that began before it would write over it.
            Err(damage) if damage.may_be_whole => {
                return Err(std::io::Error::other(format!("{} is the newest, and {damage}", path.display())));
            }
            Err(damage) => damaged.push((path, damage)),
        }
    }
    Ok((None, damaged))
}

/// The folder of a model that `path` means: of a folder of checkpoints the newest that is whole, else `path` itself. A
/// checkpoint is read to its last byte.
///
/// # Errors
/// A folder that is missing or cannot be read; checkpoints of which none is whole.
pub fn newest_in(path: &Path) -> Result<PathBuf, UserError> {
    let shown = path.display();
    let rule = "it names a checkpoint, a folder of them, or a Hugging Face model";
    let wrong =
        |error: std::io::Error| UserError::new(format!("{shown} cannot be read: {error}"), rule, "check the path");
    std::fs::read_dir(path).map_err(wrong)?;
    if path.join(MANIFEST).exists() {
        let other = "name another (`trainer checkpoint list DIR` checks them all)";
        verify(path, &Activity::default()).map_err(|damage| {
            UserError::new(format!("checkpoint {shown} is damaged: {damage}"), "every byte is as it was written", other)
        })?;
        return Ok(path.into());
    }
    let (found, damaged) = newest(path, &Activity::default()).map_err(wrong)?;
    match (found, damaged.first()) {
        (Some((newest, _)), _) => Ok(newest),
        (None, Some((newest, damage))) => {
            let what = format!("{shown} holds no whole checkpoint: {} is damaged: {damage}", newest.display());
            Err(UserError::new(what, rule, "name another folder"))
        }
        (None, None) => Ok(path.into()),
    }
}

/// Keeps the newest `keep` of this run's checkpoints of up to `step` steps, and removes its older ones. `complete` says
/// which count: a damaged one counts for nothing. `keep = 0` keeps all. Those of other runs, or of nobody knows which, stay.
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

/// What is in a folder of checkpoints, or in one checkpoint: a line each, every byte checked; and whether all are complete.
///
/// # Errors
/// A folder that cannot be read or holds none.
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
