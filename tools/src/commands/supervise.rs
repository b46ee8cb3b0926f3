//! `trainer supervise`: runs a training command, and restarts it from its newest checkpoint when it fails.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process;

use clap::Args;
use common::files::open_file;
use common::terminal::warn;
use common::{Mistakes, UserError};
use launch::watch::WatchSettings;
use launch::{Ending, StateFolder, Supervised, give_state_folder, refused_as_root, supervise};

use super::args::{training_run, whole};
use super::launch::LaunchRequest;
use trainer::checkpoint::{copy_newest_state, is_in_use, newest_step};
use trainer::config::Resume;
use trainer::config::plan::watch_settings;
use trainer::report::logs::RUN_LOG;

/// A command to supervise.
#[derive(Clone, Debug)]
pub struct SuperviseRequest {
    /// The trainer with flags, behind the launcher of the ranks.
    command: Vec<OsString>,
    max_restarts: usize,
    /// The run's checkpoints.
    checkpoints: PathBuf,
    /// The folder of the run's log. The log has the cause of a failure even if a launcher kills all ranks and loses it.
    logs: PathBuf,
    /// Whether the command names a checkpoint to start from that is not the run's own newest.
    starts_elsewhere: bool,
    /// Whether the run keeps states in shared memory.
    keeps_states: bool,
    /// How long the run may stand still.
    watch: WatchSettings,
}

/// The flags of `trainer supervise`.
#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct Flags {
    #[command(flatten)]
    restarts: Restarts,
    /// Command to run. It ends with the trainer and its flags.
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

/// The flag of `trainer supervise` that `trainer job` passes on.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(super) struct Restarts {
    /// Give up after more than this many starts in a row without a new checkpoint.
    #[arg(long, value_name = "N", default_value = "3", value_parser = whole(..=1000))]
    pub(super) max_restarts: usize,
}

impl Flags {
    /// The command that a command line asks to supervise.
    ///
    /// # Errors
    /// As [`SuperviseRequest::new`].
    pub(super) fn request(self) -> Result<SuperviseRequest, UserError> {
        SuperviseRequest::new(self.command, self.restarts.max_restarts)
    }
}

impl SuperviseRequest {
    /// Checks a command: it must be a run of this trainer that can resume after a restart.
    ///
    /// # Errors
    /// A command without the trainer, or with flags that it refuses; no `checkpoint.dir`.
    fn new(command: Vec<OsString>, max_restarts: usize) -> Result<SuperviseRequest, UserError> {
        let Some(at) = trainer_in(&command) else {
            let shown: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            return Err(UserError::new(
                format!("{} does not start the trainer", shown.join(" ")),
                "the command is a training run, of a single process or under trainer launch, mpirun or srun",
                "for example trainer supervise -- trainer launch -n 8 -- --save checkpoints",
            ));
        };
        if let Some(error) = refused_as_root(&command[..at]) {
            return Err(error);
        }
        let line = &command[at..];
        let mut mistakes = Mistakes::default();
        let run = match line.get(1).is_some_and(|word| word == "launch") {
            true => training_run(LaunchRequest::read(line)?.rank_line().skip(1), &mut mistakes),
            false => training_run(line.iter().skip(1), &mut mistakes),
        };
        let config = run.map(|run| run.config);
        let watch = config.as_ref().and_then(|config| mistakes.keep(watch_settings(&config.parallel)));
        let checkpoints = config.as_ref().map(|config| config.checkpoint.dir.clone().ok_or_else(no_checkpoints));
        let checkpoints = checkpoints.and_then(|dir| mistakes.keep(dir)).map(PathBuf::from);
        mistakes.end()?;
        let ((Some(config), Some(watch)), Some(checkpoints)) = ((config, watch), checkpoints) else {
            unreachable!("each is known, or there is a mistake")
        };
        let logs = PathBuf::from(&config.logging.dir);
        let starts_elsewhere = config.checkpoint.resume != Resume::Auto;
        let keeps_states = config.checkpoint.keeps_states();
        Ok(SuperviseRequest { command, max_restarts, checkpoints, logs, starts_elsewhere, keeps_states, watch })
    }

    /// Runs the supervised command to the end. The last state in memory becomes a checkpoint, if it is newer than those
    /// on disk.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub(super) fn run(&self) -> Result<Ending, UserError> {
        let states = if self.keeps_states { make_states() } else { None };
        let run = Run { request: self, log_length: Cell::new(0), states };
        let ending = supervise(&run, self.max_restarts, &self.watch);
        if let Some(states) = run.states {
            end_states(states, &self.checkpoints);
        }
        ending.map_err(|error| {
            let what = format!("{} cannot be started: {error}", self.command[0].to_string_lossy());
            UserError::new(what, "the first word is a program", "check its name and PATH")
        })
    }
}

/// A folder for the run's states. Without one it goes on from checkpoints on disk.
fn make_states() -> Option<StateFolder> {
    let made = StateFolder::make();
    made.inspect_err(|error| {
        warn(&format!("WARNING: supervise: no states are kept in memory: no folder can be made in /dev/shm: {error}"));
    })
    .ok()
}

/// Copies the last state to `checkpoints`, if newer than the checkpoints there. Then the folder goes, unless that failed.
fn end_states(states: StateFolder, checkpoints: &Path) {
    let copied = copy_newest_state(states.path(), checkpoints);
    match copied {
        Ok((copied, refused)) => {
            refused.iter().for_each(|why| warn(&format!("supervise: notice: {why}")));
            if let Some(checkpoint) = copied {
                warn(&format!("supervise: the last state in memory is now {}", checkpoint.display()));
            }
        }
        Err(error) => {
            let left = match states.leave() {
                Ok(path) => {
                    format!("it is left in {0}; when you are done with it, remove it: rm -r {0}", path.display())
                }
                Err(error) => format!("it is lost: its folder cannot be renamed: {error}"),
            };
            warn(&format!("WARNING: supervise: the last state in memory is not on disk: {error}. The state: {left}"));
        }
    }
}

/// A request being supervised.
struct Run<'r> {
    request: &'r SuperviseRequest,
    /// The length of the run's log at the last start.
    log_length: Cell<u64>,
    /// The folder of the run's states in memory.
    states: Option<StateFolder>,
}

impl Supervised for Run<'_> {
    fn command(&self) -> process::Command {
        let SuperviseRequest { command: words, logs, starts_elsewhere, .. } = self.request;
        self.log_length.set(std::fs::metadata(logs.join(RUN_LOG)).map_or(0, |log| log.len()));
        let mut command = process::Command::new(&words[0]);
        command.args(&words[1..]);
        if *starts_elsewhere && self.progress().is_some() {
            command.args(["--set", "checkpoint.resume=auto"]);
        }
        give_state_folder(self.states.as_ref(), &mut command);
        command
    }

    fn progress(&self) -> Option<u64> {
        let states = self.states.as_ref().map(StateFolder::path);
        newest_step(&self.request.checkpoints, states).map(|step| step as u64)
    }

    fn is_in_use(&self) -> bool {
        is_in_use(&self.request.logs, &self.request.checkpoints)
    }

    fn say(&self, text: &str) {
        let log = self.request.logs.join(RUN_LOG);
        if let Some(cause) = last_error(&log, self.log_length.get()) {
            warn(&format!("supervise: {} says: {cause}", log.display()));
        }
        warn(&format!("supervise: {text}"));
    }
}

/// The error for a run that would start at step 0 after each restart.
pub(super) fn no_checkpoints() -> UserError {
    UserError::new(
        "checkpoint.dir is unset",
        "a restarted run resumes from its newest checkpoint",
        "add --save DIR, and --save-interval STEPS",
    )
}

/// The last error in a log, after the log's first `after` bytes.
fn last_error(log: &Path, after: u64) -> Option<String> {
    let mut log = open_file(log).ok()?;
    log.seek(SeekFrom::Start(after)).ok()?;
    let mut text = Vec::new();
    log.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|line| line.split_once(" ERROR ")).map(|(_, error)| error.to_string())
}

/// The place of the trainer in a command, behind the command's launcher. A launcher's option, or the address of an image,
/// may end in the trainer's name as well. So may the image's folder, written before the trainer.
fn trainer_in(command: &[OsString]) -> Option<usize> {
    let own = std::env::current_exe().unwrap_or_default();
    let is_trainer = |word: &OsString| {
        let text = word.to_string_lossy();
        let name = Path::new(word).file_name();
        let is_named = name.is_some() && (name == own.file_name() || name == Some("trainer".as_ref()));
        is_named && !text.starts_with('-') && !text.contains("://")
    };
    let first = command.iter().position(is_trainer)?;
    Some(if command.get(first + 1).is_some_and(is_trainer) { first + 1 } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trainer_is_found_behind_containers_and_folders_of_its_name() {
        for (line, place) in [
            ("trainer --save s", Some(0)),
            ("mpirun -n 2 /opt/bin/trainer --save /ckpt/trainer", Some(3)),
            ("srun --container-image=registry/trainer --container-workdir=/home/trainer trainer --save s", Some(3)),
            ("mpirun -n 2 apptainer exec docker://registry/trainer trainer --save s", Some(6)),
            ("srun apptainer exec /images/trainer trainer --save s", Some(4)),
            ("mpirun -n 2 other", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(trainer_in(&words), place, "{line}");
        }
    }
}
