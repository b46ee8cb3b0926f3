//! The folder of a run, `logging.dir`. A resumed run appends to its own metrics. The metrics of another run are moved aside,
//! never mixed or lost.

use std::io::{BufRead, BufReader, Result};
use std::path::{Path, PathBuf};

use common::files::read_text;
use serde_json::Value;

use crate::report::metrics::METRICS;
use crate::report::tensorboard::PREFIX;

/// The file with the name of the run whose metrics the folder has.
const OWNER: &str = "run.id";

/// The most bytes of that file.
const LONGEST_NAME: u64 = 4096;

/// Gives `folder` to `run`. `resumes_at` is the step at which the run resumes, or `None` if it starts at step 0 or from
/// another run's checkpoint. Metrics of another run are moved to a folder inside, `earlier-1` or the next free number.
/// Returns that folder.
///
/// Metrics belong to another run if the name in `run.id` is not that of `run`. Older builds wrote no name: then they belong
/// to another run if they end before `resumes_at`. If the run does not resume, all existing metrics belong to another run.
///
/// # Errors
/// Operating system errors.
pub fn claim(folder: &Path, run: &str, resumes_at: Option<usize>) -> Result<Option<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let owner = read_text(&folder.join(OWNER), LONGEST_NAME).ok();
    let metrics = folder.join(METRICS);
    let exists = std::fs::metadata(&metrics).is_ok_and(|file| file.is_file() && file.len() > 0);
    let ours = match (resumes_at, owner) {
        (None, _) => false,
        (Some(_), Some(owner)) => owner.trim() == run,
        (Some(step), None) => exists && steps_of(&metrics)? >= step,
    };
    let aside = if exists && !ours { Some(move_aside(folder)?) } else { None };
    mark(folder, run)?;
    Ok(aside)
}

/// Writes which run the folder is of, also if the folder was removed.
///
/// # Errors
/// Operating system errors.
pub fn mark(folder: &Path, run: &str) -> Result<()> {
    let path = folder.join(OWNER);
    if read_text(&path, LONGEST_NAME).is_ok_and(|owner| owner.trim() == run) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(path, format!("{run}\n"))
}

/// One more than the last step of a metrics file, 0 if it has none.
fn steps_of(path: &Path) -> Result<usize> {
    let mut steps = 0;
    for line in BufReader::new(std::fs::File::open(path)?).split(b'\n') {
        let value: Option<Value> = serde_json::from_slice(&line?).ok();
        steps = value.and_then(|value| value["step"].as_u64()).map_or(steps, |step| step as usize + 1);
    }
    Ok(steps)
}

/// Moves all files about steps to a new folder inside.
fn move_aside(folder: &Path) -> Result<PathBuf> {
    let free = |number: &usize| !folder.join(format!("earlier-{number}")).exists();
    let aside = folder.join(format!("earlier-{}", (1..).find(free).unwrap_or(1)));
    std::fs::create_dir(&aside)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let about_steps =
            [METRICS, OWNER, "config.toml"].contains(&&*text) || text.starts_with("wandb-") || text.starts_with(PREFIX);
        if about_steps {
            std::fs::rename(entry.path(), aside.join(&name))?;
        }
    }
    Ok(aside)
}
