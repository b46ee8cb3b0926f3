//! Where log messages go: the console, `run.log`, and a JSON file per rank.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use common::UserError;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};

/// The target of lines that were printed already: they go to the files only.
pub const PRINTED: &str = "run";

/// What rank 0 printed and logged, in `logging.dir`.
pub const RUN_LOG: &str = "run.log";

/// Starts logging. The console shows what passes `filter`, on rank 0. In `folder`, rank 0 keeps `run.log`, what was
/// printed and logged from level info on, and every rank `rank-N.jsonl`, the same as JSON with its spans (step,
/// microbatch, layer), from debug on where the filter asks for that.
///
/// Files that are there are gone on with, beginning with a line that has version, process and command: what a run said
/// before it died stays, and another that still writes there, of which only the folder's lock tells, loses nothing.
///
/// # Errors
/// A folder that cannot be made or written to.
pub fn start(filter: EnvFilter, folder: Option<&Path>, rank: usize) -> Result<(), UserError> {
    let level = filter.max_level_hint().unwrap_or(LevelFilter::TRACE).max(LevelFilter::INFO);
    let create = |name: String| -> Result<Option<Mutex<File>>, UserError> {
        let Some(folder) = folder else { return Ok(None) };
        let made = std::fs::create_dir_all(folder)
            .and_then(|()| File::options().append(true).create(true).open(folder.join(&name)));
        made.map(|file| Some(Mutex::new(file))).map_err(|error| {
            UserError::new(
                format!("logging.dir = {}: {name} cannot be written: {error}", folder.display()),
                "a run's logs and metrics go to one folder it can write to",
                "set logging.dir to another folder, or mend its permissions",
            )
        })
    };
    let json = create(format!("rank-{rank}.jsonl"))?;
    let text = if rank == 0 { create(RUN_LOG.into())? } else { None };
    let console = (rank == 0).then(|| {
        let unprinted = filter_fn(|event| event.target() != PRINTED);
        fmt::layer().with_writer(std::io::stderr).with_filter(filter).with_filter(unprinted)
    });
    let json =
        json.map(|file| fmt::layer().json().with_span_events(FmtSpan::NONE).with_writer(file).with_filter(level));
    let text = text.map(|file| fmt::layer().with_ansi(false).with_target(false).with_writer(file).with_filter(level));
    tracing_subscriber::registry().with(console).with(json).with(text).init();
    // As a list in quotes it is one line, whatever an argument has in it.
    let command: Vec<_> = std::env::args_os().collect();
    let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
    tracing::info!(target: PRINTED, "trainer {version} starts as process {process}: {command:?}");
    Ok(())
}
