//! The checkpoint that a run starts from: the newest on disk, a newer state in memory, or one that is named.

use std::path::{Path, PathBuf};

use common::UserError;
use common::terminal::say;

use super::states::States;
use super::{Found, Session, unreadable};
use crate::checkpoint::folder::{Newest, Unclear, named, newest, steps};
use crate::checkpoint::in_memory::{Newer, newer_state, newest_of_right_sizes, state_folder};
use crate::checkpoint::manifest::{Damage, MANIFEST, Manifest};
use crate::checkpoint::read::{check_sizes, damaged, verify};
use crate::checkpoint::step_name::step_name;
use crate::config::{CheckpointConfig, Resume};
use crate::error::RunError;
use crate::told::tell;

impl Session<'_> {
    /// The path of the checkpoint after so many steps that the run starts from.
    pub(super) fn path_of(&self, step: usize, in_memory: bool) -> PathBuf {
        let memory = self.states.as_ref().filter(|_| in_memory).map(|states| states.folder.clone());
        let from = memory.or_else(|| looked_in(self.settings)).unwrap_or_default();
        if from.join(MANIFEST).exists() { from } else { from.join(step_name(step)) }
    }

    /// The checkpoint to start from, by `checkpoint.resume`.
    pub(super) fn find(&self) -> Result<Option<Found>, RunError> {
        match (&self.settings.resume, self.dir) {
            (Resume::Auto | Resume::Never, None) => Ok(None),
            (Resume::Auto, Some(dir)) => self.newest_anywhere(dir),
            (Resume::Never, Some(dir)) => {
                self.refuse_newer(dir, 0, "checkpoint.resume = never")?;
                Ok(None)
            }
            (Resume::From(path), dir) => {
                let path = &named(path.as_ref());
                let found = if path.join(MANIFEST).exists() {
                    let manifest = verify(path, &self.writers.activity).map_err(|damage| damaged(path, &damage))?;
                    Some((path.to_path_buf(), manifest))
                } else {
                    self.newest(path)?
                };
                let own = dir.and_then(|dir| dir.canonicalize().ok());
                if found.is_none() && own.is_some() && own == path.canonicalize().ok() {
                    say(&format!("{} holds no checkpoint yet: the run starts at step 0", path.display()));
                    return Ok(None);
                }
                let Some(found) = found else {
                    let problem = if path.exists() { "holds no checkpoint" } else { "does not exist" };
                    return Err(nothing_to_resume(path, problem).into());
                };
                if let Some(dir) = dir {
                    self.refuse_newer(dir, found.1.step + 1, &format!("checkpoint.resume = {}", path.display()))?;
                }
                Ok(Some(found))
            }
        }
    }

    /// The newest complete checkpoint in `dir`, or a state in memory that is newer. Newer ones that are damaged are named in
    /// notices. If the newest in `dir` has the right sizes and a state in memory is newer, nothing in `dir` is read: to read a
    /// large checkpoint takes a minute.
    ///
    /// # Errors
    /// As [`Session::newest`].
    fn newest_anywhere(&self, dir: &Path) -> Result<Option<Found>, RunError> {
        let Some(States { folder, .. }) = &self.states else { return self.newest(dir) };
        let newer_than = |on_disk: Option<&Manifest>| {
            newer_state((folder, dir), on_disk, |path| verify(path, &self.writers.activity))
        };
        let tell = |refused: Vec<String>| refused.iter().for_each(|why| tell(&format!("notice: {why}")));
        let last = steps(dir).map_err(unreadable(dir))?.pop();
        if let Ok(last) = last.map(|(_, path)| check_sizes(&path)).transpose()
            && let Newer { found: Some(found), refused } = newer_than(last.as_ref())
        {
            tell(refused);
            return Ok(Some(found));
        }
        let (on_disk, damaged) = self.look_in(dir)?;
        let newer = newer_than(on_disk.as_ref().map(|(_, manifest)| manifest));
        tell(newer.refused);
        chosen(dir, newer.found.or(on_disk), &damaged)
    }

    /// The newest complete checkpoint. Newer ones that are damaged are named in a notice.
    ///
    /// # Errors
    /// All checkpoints are damaged.
    fn newest(&self, dir: &Path) -> Result<Option<Found>, RunError> {
        let (found, damaged) = self.look_in(dir)?;
        chosen(dir, found, &damaged)
    }

    /// The newest complete checkpoint of a folder, and newer damaged checkpoints.
    fn look_in(&self, dir: &Path) -> Result<Newest, RunError> {
        newest(dir, &self.writers.activity).map_err(|unclear| match unclear {
            Unclear::Unreadable(error) => unreadable(dir)(error),
            Unclear::NotFiles(error) => error.into(),
        })
    }

    /// Fails when `dir` holds a complete checkpoint of `from` steps or more: a later restart would continue from that one.
    fn refuse_newer(&self, dir: &Path, from: usize, asked: &str) -> Result<(), RunError> {
        let all = steps(dir).map_err(unreadable(dir))?;
        match all.iter().rev().find(|(step, path)| *step >= from && check_sizes(path).is_ok()) {
            Some((_, path)) => Err(UserError::new(
                format!("{asked}, but {} exists", path.display()),
                "checkpoint.dir holds no checkpoint later than the start of the run",
                "move later ones away, set another checkpoint.dir, or checkpoint.resume = auto to continue the newest",
            )
            .into()),
            None => Ok(()),
        }
    }
}

/// The checkpoint to start from, after a notice for each one in `dir` that is `damaged`.
///
/// # Errors
/// There is none, and all in `dir` are damaged.
fn chosen(dir: &Path, found: Option<Found>, damaged: &[(PathBuf, Damage)]) -> Result<Option<Found>, RunError> {
    for (path, damage) in damaged.iter().filter(|_| found.is_some()) {
        tell(&format!("notice: checkpoint {} is damaged and skipped: {damage}", path.display()));
    }
    if let (None, [(path, damage), ..]) = (&found, damaged) {
        return Err(UserError::new(
            format!("{} holds no complete checkpoint: in {}, {damage}", dir.display(), path.display()),
            "a run does not start over beside damaged checkpoints",
            "restore their files, or set another checkpoint.dir",
        )
        .into());
    }
    Ok(found)
}

/// The folder that a run searches for a checkpoint to start from.
fn looked_in(settings: &CheckpointConfig) -> Option<PathBuf> {
    match &settings.resume {
        Resume::Never => None,
        Resume::Auto => settings.dir.as_deref().map(PathBuf::from),
        Resume::From(path) => Some(named(path.as_ref())),
    }
}

/// The checkpoint that a run with the given settings would start from. Only sizes are checked, not contents. It serves
/// code that runs before there is a [`Session`].
pub fn start_folder(settings: &CheckpointConfig) -> Option<PathBuf> {
    let from = looked_in(settings)?;
    if from.join(MANIFEST).exists() {
        return Some(from);
    }
    newest_of_right_sizes(&from, memory_of(settings).as_deref()).map(|(path, _)| path)
}

/// The folder of the states in memory from which a run with the given settings may start.
fn memory_of(settings: &CheckpointConfig) -> Option<PathBuf> {
    state_folder(settings).filter(|_| settings.resume == Resume::Auto)
}

/// The mistake of a run that resumes from a path that does not exist.
pub fn missing_checkpoint(settings: &CheckpointConfig) -> Option<UserError> {
    let Resume::From(path) = &settings.resume else { return None };
    let (path, dir) = (&named(path.as_ref()), settings.dir.as_ref().map(Path::new));
    // The run makes its own folder, and then starts at step 0.
    let is_own = dir.is_some_and(|dir| std::path::absolute(dir).ok() == std::path::absolute(path).ok());
    (!path.exists() && !is_own).then(|| nothing_to_resume(path, "does not exist"))
}

fn nothing_to_resume(path: &Path, problem: &str) -> UserError {
    let what = format!("checkpoint.resume = {} {problem}", path.display());
    UserError::new(what, "it is auto, never, a checkpoint, or a folder of them", "check the path")
}

/// Steps of the newest checkpoint in a run's `checkpoint.dir`, or of a newer state in `memory`. Only sizes are checked, not
/// contents.
pub fn newest_step(dir: &Path, memory: Option<&Path>) -> Option<usize> {
    newest_of_right_sizes(dir, memory).map(|(_, manifest)| manifest.step)
}
