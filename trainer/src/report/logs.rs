//! Log messages: on the console, in `run.log`, and in a JSON file per rank.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use common::UserError;
use common::escape::visible;
use common::files::open_to_append;
use common::terminal::{PRINTED, warn};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};

use crate::told;

/// The file in `logging.dir` with rank 0's output and log.
pub const RUN_LOG: &str = "run.log";

/// Starts logging:
///
/// - The console of rank 0 shows the messages that pass `filter`.
/// - `run.log` in `folder`, on rank 0, gets the printed lines, and the messages of level info and above.
/// - `rank-N.jsonl` in `folder`, on every rank, gets the same as JSON, with spans (step, microbatch, layer).
///
/// The files also get lower levels if the filter asks for them.
/// Lines are added to existing files, so nothing is lost that an earlier run wrote, or that another run still writes.
/// The first line has the version, process and command.
///
/// # Errors
/// A folder that cannot be created or written to.
pub fn start(filter: EnvFilter, folder: Option<&Path>, rank: usize) -> Result<(), UserError> {
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE).max(LevelFilter::INFO);
    let create = |name: String| -> Result<Option<LogFile>, UserError> {
        let Some(folder) = folder else { return Ok(None) };
        let path = folder.join(&name);
        let made = std::fs::create_dir_all(folder).and_then(|()| open_to_append(&path));
        made.map(|file| Some(LogFile { path, file, has_failed: false }))
            .map_err(|error| unwritable(folder, &name, &error))
    };
    let json = create(format!("rank-{rank}.jsonl"))?.map(Mutex::new);
    let text = if rank == 0 { create(RUN_LOG.into())? } else { None };
    let text = text.map(|file| Mutex::new(TextLog(file)));
    let console = (rank == 0).then(|| {
        let unprinted = filter_fn(|event| event.target() != PRINTED);
        fmt::layer().with_ansi(false).with_writer(|| Console).with_filter(filter).with_filter(unprinted)
    });
    let json =
        json.map(|file| fmt::layer().json().with_span_events(FmtSpan::NONE).with_writer(file).with_filter(level));
    let text = text.map(|file| fmt::layer().with_ansi(false).with_target(false).with_writer(file).with_filter(level));
    tracing_subscriber::registry().with(console).with(json).with(text).init();
    // Debug formatting escapes line breaks in arguments.
    let command: Vec<_> = std::env::args_os().collect();
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::info!(target: PRINTED, "trainer {version} starts as process {process}: {command:?}");
    told::log_earlier();
    Ok(())
}

/// The error for a run's file that cannot be written.
pub fn unwritable(folder: &Path, name: &str, error: &std::io::Error) -> UserError {
    UserError::new(
        format!("logging.dir = {}: {name} cannot be written: {error}", folder.display()),
        "a run writes its logs and metrics into regular files of that folder, and follows no link in it",
        "remove what is in the file's place, change permissions, or set logging.dir to another folder",
    )
}

/// A log for people, with the part of each message that a terminal shows.
struct TextLog(LogFile);

impl Write for TextLog {
    /// `tracing` writes a whole message at once.
    fn write(&mut self, message: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(visible(&String::from_utf8_lossy(message)).as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// The console: a message is printed as all other lines are.
struct Console;

impl Write for Console {
    /// `tracing` writes a whole message at once.
    fn write(&mut self, message: &[u8]) -> std::io::Result<usize> {
        warn(String::from_utf8_lossy(message).trim_end_matches('\n'));
        Ok(message.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A log file. Training goes on if it cannot be written, and the user is told once: `tracing` drops the error.
struct LogFile {
    path: PathBuf,
    file: File,
    has_failed: bool,
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(line);
        if let Err(error) = &written
            && !std::mem::replace(&mut self.has_failed, true)
        {
            warn(&format!(
                "WARNING: {} cannot be written: {error}. It lacks lines; the run goes on",
                self.path.display()
            ));
        }
        written
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
