//! Files that a run writes after its steps. They are checked before the run begins.

use std::path::{Path, PathBuf};

use common::UserError;
use common::files::open_to_append;

use crate::config::LoggingConfig;
use crate::report::graph_report::beside;
use crate::run::trace;

/// Fails if rank `rank` cannot write the files of `--trace` and `--graph-report`. Missing files are created empty, existing
/// ones stay as they are until the end.
///
/// # Errors
/// The first file that cannot be written.
pub fn check_writable(logging: &LoggingConfig, graph_report: Option<&Path>, rank: usize) -> Result<(), UserError> {
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
pub fn writable(what: &str, path: &Path) -> Result<(), UserError> {
    open_to_append(path).map(drop).map_err(|error| {
        let rule = "the path is that of a regular file that can be written, and of no link";
        UserError::new(format!("{what}: {error}"), rule, "name a file in a folder that exists")
    })
}
