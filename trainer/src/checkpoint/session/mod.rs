//! The checkpoints of a run: in `start.rs` the one that it starts from, in `saves.rs` those that it writes, in `states.rs`
//! those in shared memory. `memory.rs` has the memory for copies of the state, `removal.rs` the end of old checkpoints.

mod memory;
mod removal;
mod saves;
mod start;
mod states;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::format::counted;
use common::{Choice, UserError};
use data::{self, CopiedFile, Identities};
use device::Device;
use engine::step::Stage;

use crate::checkpoint::changes::{ChangedSettings, changed_settings, in_words, other_run};
use crate::checkpoint::file::{KeptFile, Single};
use crate::checkpoint::folder::{clean, foreign};
use crate::checkpoint::lock::{CHECKPOINTS, FolderLock, is_locked, shows};
use crate::checkpoint::manifest::{Manifest, Progress};
use crate::checkpoint::read::{check_sizes, config, damaged, load, metrics_of, source_files};
use crate::checkpoint::unfinished::UnfinishedSave;
use crate::checkpoint::validated::{Validated, ValidationEntry};
use crate::checkpoint::write::Origin;
use crate::checkpoint::writers::Writers;
use crate::config::plan::RunPlan;
use crate::config::{CheckpointConfig, ConfigSources, RunConfig};
use crate::error::RunError;
use crate::process_group::ProcessGroup;
use crate::told::{say_and_log, tell};
use memory::CopyMemory;
use removal::Removal;
pub use start::{missing_checkpoint, newest_step, start_folder};
pub use states::Place;
use states::States;

/// A checkpoint to start from.
type Found = (PathBuf, Manifest);

/// A run locks `logging.dir` with this file.
pub(crate) const LOG_LOCK: &str = "run.lock";

/// The longest time for a network file system to show one node the writes of another.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a run has locked `logs`, a `logging.dir`, or `checkpoints`, a `checkpoint.dir`.
pub fn is_in_use(logs: &Path, checkpoints: &Path) -> bool {
    is_locked(logs, LOG_LOCK) || is_locked(checkpoints, CHECKPOINTS)
}

/// A run's checkpoints. Only rank 0 reads folders and decides. Each rank writes the part of the state that it alone has. Of
/// ranks with the same state one writes.
pub struct Session<'p> {
    settings: &'p CheckpointConfig,
    dir: Option<&'p Path>,
    /// The facts about the run that every checkpoint records.
    origin: Arc<Origin>,
    main: bool,
    writers: Writers,
    /// Ranks of this machine.
    local_ranks: usize,
    found: Option<Found>,
    /// The checkpoint that is being written.
    unfinished: Option<Unfinished>,
    /// `None` if the run keeps no state in shared memory.
    states: Option<States>,
    memory: CopyMemory,
    removal: Removal,
    _locks: Vec<FolderLock>,
}

/// A checkpoint that is being written.
struct Unfinished {
    place: Place,
    step: usize,
    save: UnfinishedSave,
}

impl<'p> Session<'p> {
    /// Locks the run's folders, removes the half-finished work of a dead process, and finds the checkpoint to start
    /// from. All ranks call it together. Every checkpoint gets `data` and `copies`, the files with the meaning of the
    /// run's tokens.
    ///
    /// # Errors
    /// A folder in use by another run; only damaged checkpoints; a start that would mix the checkpoints of two runs; a
    /// checkpoint of another model; a rank that sees another `checkpoint.dir`.
    pub fn open(
        plan: &'p RunPlan,
        group: &ProcessGroup,
        data: Identities,
        copies: Vec<(CopiedFile, Vec<u8>)>,
    ) -> Result<Session<'p>, RunError> {
        let settings = &plan.config.checkpoint;
        let dir = settings.dir.as_deref().map(Path::new);
        let main = group.rank() == 0;
        let settings_of_run = toml::to_string(&plan.config).unwrap_or_default();
        let origin = Arc::new(Origin { config: settings_of_run, ..Origin::default() });
        let writers = Writers::new(plan, group);
        let mut session = Session {
            settings,
            dir,
            origin,
            main,
            writers,
            local_ranks: group.local_size,
            found: None,
            unfinished: None,
            states: None,
            memory: CopyMemory::default(),
            removal: Removal::default(),
            _locks: Vec::new(),
        };
        let mark = if main { format!("mark {}", new_run()) } else { String::new() };
        if main {
            let logs = Path::new(&plan.config.logging.dir);
            session._locks.push(FolderLock::take(logs, LOG_LOCK, "logging.dir", &mark)?);
            if let Some(dir) = dir {
                session._locks.push(FolderLock::take(dir, CHECKPOINTS, "checkpoint.dir", &mark)?);
            }
        }
        if let Some(dir) = dir {
            all_see(dir, mark, group, plan.parallel.mesh.ranks())?;
            session.states = States::open(settings, group);
        }
        if main {
            if let Some(dir) = dir {
                if let Some(path) = foreign(dir).map_err(unreadable(dir))? {
                    return Err(UserError::new(
                        format!("{} is there and is not a checkpoint", path.display()),
                        "in checkpoint.dir, names such as step-00001000 belong to checkpoints",
                        "give it another name, or set another checkpoint.dir",
                    )
                    .into());
                }
                clean(dir).map_err(unreadable(dir))?;
                if let Some(States { folder, .. }) = &session.states {
                    clean(folder).map_err(unreadable(folder))?;
                }
            }
            let origin = Arc::make_mut(&mut session.origin);
            origin.data = Some(data);
            origin.copies = copies;
            session.found = session.find()?;
            if let Some((path, manifest)) = &session.found {
                if let Ok(theirs) = config(path) {
                    other_run(path, &theirs, &plan.config)?;
                }
                Arc::make_mut(&mut session.origin).source =
                    source_files(path, manifest).map_err(|damage| damaged(path, &damage))?;
            }
            session.tell();
            let before = session.continued().and_then(|(_, manifest)| manifest.run.clone());
            Arc::make_mut(&mut session.origin).run = Some(before.unwrap_or_else(new_run));
        }
        // Rank 0 has read every byte of the checkpoint. The others take the same one.
        let step = session.found.as_ref().map_or(0, |(_, manifest)| manifest.step as u64 + 1);
        let step = group.control.max(step);
        let in_memory = group.control.any(session.starts_from_memory());
        if !main && step > 0 {
            let path = session.path_of(step as usize - 1, in_memory);
            let manifest = check_sizes(&path).map_err(|damage| {
                not_shared(format!("rank {} cannot use {}: {damage}", group.rank(), path.display()))
            })?;
            session.found = Some((path, manifest));
        }
        Ok(session)
    }

    /// The name of the run, on rank 0.
    pub fn run(&self) -> &str {
        self.origin.run.as_deref().unwrap_or_default()
    }

    /// Keeps files of the Hugging Face model that a new run begins with in every checkpoint. One that goes on has them from
    /// its checkpoint.
    pub fn keep_source(&mut self, files: Vec<KeptFile>) {
        Arc::make_mut(&mut self.origin).source = files;
    }

    /// The steps and samples done before the run starts: none, or those of its checkpoint.
    pub fn progress(&self) -> Progress {
        self.found.as_ref().map_or(Progress::default(), |(_, manifest)| manifest.progress())
    }

    /// The validation losses of the run so far. They are no other run's.
    pub fn validated(&self) -> Validated {
        let entry = self.continued().and_then(|(_, manifest)| manifest.validation.as_ref());
        entry.map_or(Validated::default(), ValidationEntry::validated)
    }

    /// The configuration of the checkpoint to start from, and the differences of the data to train on. Only rank 0 has
    /// them. `None` without a checkpoint, or if its configuration cannot be read.
    pub fn before(&self) -> Option<(RunConfig, Vec<String>)> {
        let (path, manifest) = self.found.as_ref()?;
        let mut sources = ConfigSources::default();
        sources.read_text(&config(path).ok()?, Single::Config.word()).ok()?;
        let to_train_on = |data: &Option<Identities>| -> Option<Identities> {
            let all = data.as_ref()?.iter().filter(|(name, _)| name.starts_with("data.path"));
            Some(all.map(|(name, identity)| (name.clone(), identity.clone())).collect())
        };
        let other_data = match (to_train_on(&manifest.data), to_train_on(&self.origin.data)) {
            (Some(before), Some(now)) if before.keys().ne(now.keys()) => {
                vec![format!("data.path has {} (was {})", counted(now.len(), "dataset"), before.len())]
            }
            (Some(before), Some(now)) => data::changed(&before, &now),
            _ => Vec::new(),
        };
        Some((sources.resolve(), other_data))
    }

    /// Whether there is no checkpoint to start from.
    pub fn begins_anew(&self) -> bool {
        self.found.is_none()
    }

    /// The step of the run's own checkpoint at which the run resumes; `None` for a start at step 0 or from another run's
    /// checkpoint.
    pub fn continues_at(&self) -> Option<usize> {
        self.continued().map(|(_, manifest)| manifest.step)
    }

    /// Whether the checkpoint to start from is a state in memory.
    fn starts_from_memory(&self) -> bool {
        let folder = self.states.as_ref().map(|states| &states.folder);
        folder.is_some_and(|folder| self.found.as_ref().is_some_and(|(path, _)| path.parent() == Some(folder)))
    }

    /// The checkpoint to start from, if the run's own: one in its `checkpoint.dir` or its memory.
    fn continued(&self) -> Option<&Found> {
        if self.starts_from_memory() {
            return self.found.as_ref();
        }
        let own = self.dir?.canonicalize().ok()?;
        self.found.as_ref().filter(|(path, _)| path.canonicalize().is_ok_and(|path| path.parent() == Some(&own)))
    }

    /// Makes the device compute matrix products as the run that wrote the checkpoint did. It comes before anything is
    /// planned. On another GPU, or with another version of its library, it only prints a notice.
    pub fn compute_alike(&self, device: &Device) {
        let Some(products) = self.found.as_ref().and_then(|(_, manifest)| manifest.products.as_ref()) else { return };
        if let (Err(error), true) = (device.import_choices(products), self.main) {
            tell(&format!(
                "notice: {error}. The run continues, but its last bits may differ from those of an uninterrupted run."
            ));
        }
    }

    /// The lines of metrics that the checkpoint has because the run could not write them elsewhere. Empty if it is
    /// another run's checkpoint: a new run has its own metrics.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn carried_metrics(&self) -> Result<Vec<u8>, RunError> {
        match self.continued() {
            Some((path, manifest)) => Ok(metrics_of(path, manifest).map_err(|damage| damaged(path, &damage))?),
            None => Ok(Vec::new()),
        }
    }

    /// The settings that numbers depend on and that changed since the checkpoint that the run starts from.
    pub fn changed_settings(&self) -> ChangedSettings {
        let before = self.found.as_ref().and_then(|(path, _)| config(path).ok());
        before.map_or_else(ChangedSettings::new, |before| changed_settings(&before, &self.origin.config))
    }

    /// Loads the checkpoint to start from into the stage, if there is one.
    ///
    /// # Errors
    /// See [`load`].
    pub fn restore(&self, stage: &Stage) -> Result<(), RunError> {
        match &self.found {
            Some((path, manifest)) => load(path, manifest, stage, &self.writers.activity),
            None => Ok(()),
        }
    }

    /// Prints the checkpoint that the run starts from, and the settings and data that changed since.
    fn tell(&self) {
        let Some((path, manifest)) = &self.found else { return };
        let place = if self.starts_from_memory() { ", from memory" } else { "" };
        let (path, step, sample) = (path.display(), manifest.step, manifest.samples);
        say_and_log(&format!("continues {path} at step {step}, sample {sample}{place}"));
        let mut changed = in_words(&self.changed_settings());
        if let (Some(before), Some(now)) = (&manifest.data, &self.origin.data) {
            changed.extend(data::changed(before, now));
        }
        if !changed.is_empty() {
            tell(&format!("notice: changed since the checkpoint, so the numbers may differ: {}", changed.join(", ")));
        }
    }
}

/// Fails on all ranks if any rank does not see the mark that rank 0 left in `dir`. All ranks call it together.
fn all_see(dir: &Path, mark: String, group: &ProcessGroup, all: usize) -> Result<(), UserError> {
    let mark = group.control.broadcast_text(0, mark);
    // Ranks of one machine see each other's writes at once.
    let patience = if group.local_size == all { Duration::ZERO } else { PATIENCE };
    let blind = group.rank() > 0 && !shows(dir, CHECKPOINTS, &mark, patience);
    // The highest such rank is named; 0 means none.
    let Some(last) = group.control.max(if blind { group.rank() as u64 + 1 } else { 0 }).checked_sub(1) else {
        return Ok(());
    };
    let here = std::path::absolute(dir).unwrap_or(dir.into()).display().to_string();
    let [first, other] = [0, last as usize].map(|rank| group.control.broadcast_text(rank, here.clone()));
    let what = format!("checkpoint.dir = {}: rank {last} does not see in {other} what rank 0 wrote", dir.display());
    Err(not_shared(if first == other { what } else { format!("{what} in {first}") }))
}

fn not_shared(what: String) -> UserError {
    UserError::new(what, "all ranks see the same checkpoints", "put them on a file system all nodes share")
}

fn unreadable(dir: &Path) -> impl FnOnce(std::io::Error) -> RunError {
    move |error| RunError::File { what: format!("checkpoints in {}", dir.display()), error }
}

/// A random name for a new run. Its checkpoints keep it.
fn new_run() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish()) // the system seeds it
}
