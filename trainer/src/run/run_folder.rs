//! The folder of a run, `logging.dir`, and other files that the run writes after steps. A resumed run appends to its own
//! metrics. The metrics of another run are moved aside, never mixed or lost.

use std::io::Result;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use common::UserError;
use common::files::{ensure_writable_name, open_to_append, read_text, write_file};
use common::time::rfc3339;
use launch::watch::ranks_file::RANKS;

use crate::checkpoint::LOG_LOCK;
use crate::config::LoggingConfig;
use crate::config::model_name::name_in;
use crate::report::graph_report::beside;
use crate::report::logs::{RUN_LOG, unwritable};
use crate::report::metrics::{METRICS, last_step};
use crate::report::samples::SAMPLES;
use crate::report::tensorboard::PREFIX;
use crate::report::wandb::{HISTORY, SUMMARY};
use crate::report::wandb_client::CLIENT_LOG;
use crate::run::trace;

/// The file with the name of the run that wrote the folder's metrics. Its second line has the time of the run's start.
const OWNER: &str = "run.id";

/// The file with every option of the run.
pub const CONFIG: &str = "config.toml";

/// The most bytes of the configuration that are read for the name of a model.
const LONGEST_CONFIG: u64 = 1 << 20;

/// The most bytes of that file.
const LONGEST_NAME: u64 = 4096;

/// The names of the files that rank 0 writes into the run's folder.
const WRITTEN: [&str; 10] = [LOG_LOCK, CONFIG, METRICS, SAMPLES, OWNER, RUN_LOG, RANKS, HISTORY, SUMMARY, CLIENT_LOG];

/// Fails if something other than a regular file is in the place of a file that rank 0 writes into `folder`. So the run is
/// refused before any work, though most of these files are opened late.
///
/// # Errors
/// The first such file.
pub fn check(folder: &Path) -> std::result::Result<(), UserError> {
    // A file is replaced by way of another, named with one more ending.
    let names = WRITTEN.into_iter().flat_map(|name| [name.to_string(), format!("{name}.tmp")]);
    names.into_iter().try_for_each(|name| {
        ensure_writable_name(&folder.join(&name)).map_err(|error| unwritable(folder, &name, &error))
    })
}

/// Fails if rank `rank` cannot write the files of `--trace` and `--graph-report`. Missing files are created empty, existing
/// ones stay as they are until the end.
///
/// # Errors
/// The first file that cannot be written.
pub fn check_writable(
    logging: &LoggingConfig,
    graph_report: Option<&Path>,
    rank: usize,
) -> std::result::Result<(), UserError> {
    if let Some(path) = &logging.trace {
        let path = trace::of_rank(Path::new(path), rank);
        create_run_folder(logging, &path);
        writable(&format!("logging.trace = {}", path.display()), &path)?;
    }
    if let (0, Some(path)) = (rank, graph_report) {
        let beside = beside(path);
        for path in std::iter::once(path).chain(beside.iter().map(PathBuf::as_path)) {
            create_run_folder(logging, path);
            writable(&format!("--graph-report {}", path.display()), path)?;
        }
    }
    Ok(())
}

/// Creates `logging.dir` if the file lies in it. An error is not reported here: opening the file will fail too, and is
/// reported.
fn create_run_folder(logging: &LoggingConfig, path: &Path) {
    let parent = path.parent().map(std::path::absolute);
    if let (Some(Ok(parent)), Ok(folder)) = (parent, std::path::absolute(&logging.dir))
        && parent == folder
    {
        let _ = std::fs::create_dir_all(folder);
    }
}

/// Fails if a file cannot be written. A missing one is created empty. Messages call it `what`.
///
/// # Errors
/// The operating system's error.
pub fn writable(what: &str, path: &Path) -> std::result::Result<(), UserError> {
    open_to_append(path).map(drop).map_err(|error| {
        let rule = "the path is that of a regular file that can be written, and of no link";
        UserError::new(format!("{what}: {error}"), rule, "name a file in a folder that exists")
    })
}

/// Gives `folder` to `run`. `resumes_at` is the step at which the run resumes, or `None` if it starts at step 0 or from
/// another run's checkpoint. Metrics of another run are moved to a folder inside. Its name has the time of that run's
/// start and the name of its model, such as `earlier-2026-11-23T10-31-05-tiny`. Returns that folder.
///
/// Metrics belong to another run if the name in `run.id` is not that of `run`. Older builds wrote no name: then they belong
/// to another run if they end before `resumes_at`. If the run does not resume, all existing metrics belong to another run.
///
/// # Errors
/// Operating system errors.
pub fn claim(folder: &Path, run: &str, resumes_at: Option<usize>) -> Result<Option<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let owner = owner(folder);
    let metrics = folder.join(METRICS);
    let exists = std::fs::metadata(&metrics).is_ok_and(|file| file.is_file() && file.len() > 0);
    let ours = match (resumes_at, owner) {
        (None, _) => false,
        (Some(_), Some(owner)) => owner.run == run,
        (Some(step), None) => exists && last_step(&metrics)? >= step as u64,
    };
    let aside = if exists && !ours { Some(move_aside(folder)?) } else { None };
    mark(folder, run)?;
    Ok(aside)
}

/// The contents of `run.id`: the run that the folder belongs to.
struct Owner {
    run: String,
    /// When the run began, such as `2026-11-23T10:31:05Z`. Older builds did not write it.
    began: Option<String>,
}

fn owner(folder: &Path) -> Option<Owner> {
    let text = read_text(&folder.join(OWNER), LONGEST_NAME).ok()?;
    let mut lines = text.lines().map(|line| line.trim().to_string());
    Some(Owner { run: lines.next().unwrap_or_default(), began: lines.next() })
}

/// Writes the name of the folder's run, also if the folder was removed.
///
/// # Errors
/// Operating system errors.
pub fn mark(folder: &Path, run: &str) -> Result<()> {
    if owner(folder).is_some_and(|owner| owner.run == run) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    write_file(&folder.join(OWNER), format!("{run}\n{}\n", rfc3339(SystemTime::now())))
}

/// The name of the folder for the metrics that are in `folder`. Such names sort by time.
fn earlier(folder: &Path) -> Result<String> {
    let written = || std::fs::metadata(folder.join(METRICS))?.modified();
    let began = match owner(folder).and_then(|owner| owner.began) {
        Some(began) => began,
        // The next best that is known of a run of an older build.
        None => rfc3339(written()?),
    };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let time: String =
        began.trim_end_matches('Z').replace(':', "-").chars().filter(|letter| is_plain(*letter)).collect();
    let config = read_text(&folder.join(CONFIG), LONGEST_CONFIG).unwrap_or_default();
    Ok(format!("earlier-{time}-{}", name_in(&config)))
}

/// Moves all files about steps to a new folder inside.
fn move_aside(folder: &Path) -> Result<PathBuf> {
    let name = earlier(folder)?;
    // Two runs may have begun within a second.
    let names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    let aside = names.map(|name| folder.join(name)).find(|path| !path.exists()).unwrap_or(folder.join(&name));
    std::fs::create_dir(&aside)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let about_steps = [METRICS, SAMPLES, OWNER, CONFIG].contains(&&*text)
            || text.starts_with("wandb-")
            || text.starts_with(PREFIX);
        if about_steps {
            std::fs::rename(entry.path(), aside.join(&name))?;
        }
    }
    Ok(aside)
}
