//! Files that a run writes after its steps, looked at before anything has begun.

use std::fs::File;
use std::path::Path;

use common::UserError;

use crate::config::plan::RunPlan;
use crate::config::request::TrainRequest;
use crate::run::trace;

/// Refuses the files of `--trace` and `--graph-report` that rank `rank` could not write in the end. What they hold stays
/// until then; those that are not there are made, empty.
///
/// # Errors
/// The first that cannot be written.
pub fn check(plan: &RunPlan, request: &TrainRequest, rank: usize) -> Result<(), UserError> {
    if let Some(path) = &plan.config.logging.trace {
        let path = trace::of_rank(Path::new(path), rank);
        make_run_folder(plan, &path);
        writable(&format!("logging.trace = {}", path.display()), &path)?;
    }
    if let (0, Some(path)) = (rank, &request.graph_report) {
        for path in [path, &path.with_extension("dot")] {
            make_run_folder(plan, path);
            writable(&format!("--graph-report {}", path.display()), path)?;
        }
    }
    Ok(())
}

/// Makes the run's own folder where a file is to be in it: the run is about to. What fails is told of the file.
fn make_run_folder(plan: &RunPlan, path: &Path) {
    let parent = path.parent().map(std::path::absolute);
    if let (Some(Ok(parent)), Ok(folder)) = (parent, std::path::absolute(&plan.config.logging.dir))
        && parent == folder
    {
        let _ = std::fs::create_dir_all(folder);
    }
}

fn writable(what: &str, path: &Path) -> Result<(), UserError> {
    File::options().append(true).create(true).open(path).map(drop).map_err(|error| {
        let rule = "it names a file that can be written";
        UserError::new(format!("{what}: {error}"), rule, "name one in a folder that exists")
    })
}
