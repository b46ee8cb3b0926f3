//! `trainer supervise`: a run that is started again when it fails, from its newest checkpoint.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::UserError;
use common::terminal::warn;
use launch::{Ending, supervise};

use crate::checkpoint::newest_step;
use crate::commands::cli::{Request, parse};
use crate::config::request::TrainRequest;
use crate::report::logs::RUN_LOG;

/// What to supervise.
#[derive(Clone, Debug)]
pub struct SuperviseRequest {
    /// The trainer with its flags, and before it what starts its ranks.
    command: Vec<OsString>,
    max_restarts: usize,
    /// Where its checkpoints are.
    checkpoints: PathBuf,
    /// Its log, in which the cause of its end is. A launcher that ends all ranks may lose what rank 0 said of it.
    log: PathBuf,
    /// Whether it was told another start than its newest checkpoint.
    starts_elsewhere: bool,
}

impl SuperviseRequest {
    /// Fails where the run could not go on when it is started again, or is no run of this trainer.
    ///
    /// # Errors
    /// A command without the trainer, or with flags that it refuses; no `checkpoint.dir`.
    pub fn new(command: Vec<OsString>, max_restarts: usize) -> Result<SuperviseRequest, UserError> {
        let Some(at) = command.iter().position(is_trainer) else {
            let shown: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            return Err(UserError::new(
                format!("{} does not start the trainer", shown.join(" ")),
                "what is supervised is a training run, alone or under mpirun or srun",
                "for example trainer supervise -- mpirun -n 8 trainer --save checkpoints",
            ));
        };
        let config = training(command[at..].iter().cloned())?.config;
        let checkpoints = config.checkpoint.dir.map(PathBuf::from).ok_or_else(no_checkpoints)?;
        let log = Path::new(&config.logging.dir).join(RUN_LOG);
        let starts_elsewhere = config.checkpoint.resume != "auto";
        Ok(SuperviseRequest { command, max_restarts, checkpoints, log, starts_elsewhere })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub fn run(&self) -> Result<Ending, UserError> {
        let progress = || newest_step(&self.checkpoints).map(|step| step as u64);
        let read_before = Cell::new(0);
        let start = || {
            read_before.set(std::fs::metadata(&self.log).map_or(0, |log| log.len()));
            let mut command = Command::new(&self.command[0]);
            command.args(&self.command[1..]);
            if self.starts_elsewhere && progress().is_some() {
                command.args(["--set", "checkpoint.resume=auto"]);
            }
            command
        };
        let say = |text: &str| {
            if let Some(cause) = last_error(&self.log, read_before.get()) {
                warn(&format!("supervise: {} says: {cause}", self.log.display()));
            }
            warn(&format!("supervise: {text}"));
        };
        supervise(&start, &progress, self.max_restarts, &say).map_err(|error| {
            let what = format!("{} cannot be started: {error}", self.command[0].to_string_lossy());
            UserError::new(what, "the first word is a program", "check its name and PATH")
        })
    }
}

/// The training run that a command line of the trainer asks for.
///
/// # Errors
/// What is wrong with it; one that asks for something else.
pub fn training(arguments: impl IntoIterator<Item = OsString>) -> Result<TrainRequest, UserError> {
    match parse(arguments)? {
        Request::Train(request) if !request.dry_run => Ok(*request),
        _ => Err(UserError::new(
            "the trainer's flags do not train",
            "a job is a training run",
            "leave out what keeps it from one",
        )),
    }
}

/// A run that is started again begins anew where it has no checkpoints.
pub fn no_checkpoints() -> UserError {
    UserError::new(
        "checkpoint.dir is unset",
        "a run that is started again goes on from its newest checkpoint",
        "add --save DIR, and --save-interval STEPS",
    )
}

/// The last error in a log, of what was written after its first bytes.
fn last_error(log: &Path, after: u64) -> Option<String> {
    let mut log = File::open(log).ok()?;
    log.seek(SeekFrom::Start(after)).ok()?;
    let mut text = Vec::new();
    log.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find_map(|line| line.split_once(" ERROR ")).map(|(_, error)| error.to_string())
}

fn is_trainer(word: &OsString) -> bool {
    let name = Path::new(word).file_name();
    let own = std::env::current_exe().unwrap_or_default();
    name.is_some() && (name == own.file_name() || name == Some("trainer".as_ref()))
}
