//! Whose metrics a folder has. A run goes on with its own; those of another run are moved aside, never mixed or lost.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Result};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::report::metrics::METRICS;

/// The file with the name of the run that the folder's metrics are of.
const OWNER: &str = "run.id";

/// A name for a new run, which its checkpoints keep.
pub fn new_run() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish()) // seeded by the system
}

/// Makes `folder` the one of `run`, which goes on with what it did before at step `continues`; none where it begins,
/// anew or from another run's checkpoint. If the folder has metrics of another run, they go to a folder within, which is
/// returned: `earlier-1`, or the next that is free.
///
/// Metrics are another run's if that has another name or, where it has none because an older build wrote them, if they
/// end before that step. For a run that begins all are.
///
/// # Errors
/// What the operating system said.
pub fn take(folder: &Path, run: &str, continues: Option<usize>) -> Result<Option<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let owner = std::fs::read_to_string(folder.join(OWNER)).ok();
    let metrics = folder.join(METRICS);
    let there = std::fs::metadata(&metrics).is_ok_and(|file| file.is_file() && file.len() > 0);
    let ours = match (continues, owner) {
        (None, _) => false,
        (Some(_), Some(owner)) => owner.trim() == run,
        (Some(step), None) => there && steps_of(&metrics)? >= step,
    };
    let aside = if there && !ours { Some(move_aside(folder)?) } else { None };
    std::fs::write(folder.join(OWNER), format!("{run}\n"))?;
    Ok(aside)
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

/// Moves all that a run writes about its steps.
fn move_aside(folder: &Path) -> Result<PathBuf> {
    let free = |number: &usize| !folder.join(format!("earlier-{number}")).exists();
    let aside = folder.join(format!("earlier-{}", (1..).find(free).unwrap_or(1)));
    std::fs::create_dir(&aside)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let of_steps = [METRICS, OWNER, "config.toml"].contains(&&*text)
            || text.starts_with("wandb-")
            || text.starts_with("events.out.tfevents.");
        if of_steps {
            std::fs::rename(entry.path(), aside.join(&name))?;
        }
    }
    Ok(aside)
}
