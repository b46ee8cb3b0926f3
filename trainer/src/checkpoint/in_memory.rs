//! States in shared memory: checkpoints of the usual form, written more often, in a folder that lives as long as the
//! supervisor of the run. They serve processes that died on a machine that lives.

use std::path::{Path, PathBuf};

use super::folder::steps;
use super::manifest::{Damage, Manifest};
use super::read::{check_sizes, config};
use crate::config::CheckpointConfig;

/// The folder for the states of a run with these settings; `None` if it keeps none in memory.
pub fn state_folder(settings: &CheckpointConfig) -> Option<PathBuf> {
    launch::state_folder().filter(|_| settings.keeps_states())
}

/// The most states that are in memory at once: the newest, and a newer one that is being written.
pub(crate) const MOST_STATES: usize = 2;

/// How many states a run with these settings may add to those that are in memory already.
pub(crate) fn states_to_come(settings: &CheckpointConfig) -> usize {
    let there = |folder: PathBuf| steps(&folder).map_or(0, |states| states.len());
    state_folder(settings).map_or(0, |folder| MOST_STATES.saturating_sub(there(folder)))
}

/// The newest state in memory that is newer than `checkpoint.dir`'s newest, and why others were not taken.
#[derive(Default)]
pub(super) struct Newer {
    pub(super) found: Option<(PathBuf, Manifest)>,
    pub(super) refused: Vec<String>,
}

/// Looks in `memory` for the newest state that is newer than `on_disk`, the newest checkpoint in `dir`. It must be one of the
/// run of `dir`, and pass `check`.
pub(super) fn newer_state(
    (memory, dir): (&Path, &Path),
    on_disk: Option<&Manifest>,
    check: impl Fn(&Path) -> Result<Manifest, Damage>,
) -> Newer {
    let mut newer = Newer::default();
    let all = match steps(memory) {
        Ok(all) => all,
        Err(error) => {
            newer.refused.push(format!("states in memory, in {}, cannot be read: {error}", memory.display()));
            return newer;
        }
    };
    for (step, path) in all.into_iter().rev() {
        if on_disk.is_some_and(|on_disk| on_disk.step >= step) {
            break;
        }
        let state = format!("the state in memory after step {step}");
        match check(&path) {
            Err(damage) => newer.refused.push(format!("{state} is damaged and skipped: {damage}")),
            Ok(manifest) if on_disk.is_some_and(|on_disk| on_disk.run != manifest.run) || !is_of(&path, dir) => newer
                .refused
                .push(format!("{state} is skipped: it is of another run than the checkpoints in {}", dir.display())),
            Ok(manifest) => {
                newer.found = Some((path, manifest));
                break;
            }
        }
    }
    newer
}

/// Whether the run that wrote a state has its checkpoints in `dir`.
fn is_of(state: &Path, dir: &Path) -> bool {
    let table = config(state).ok().and_then(|text| text.parse::<toml::Table>().ok());
    let named = table.as_ref().and_then(|table| table.get("checkpoint")?.get("dir")?.as_str());
    named.is_some_and(|named| Path::new(named) == dir)
}

/// The checkpoint, or state in `memory`, with the most steps that a run with `dir` as its `checkpoint.dir` continues. Only
/// sizes are checked, not contents.
pub(super) fn newest_of_right_sizes(dir: &Path, memory: Option<&Path>) -> Option<(PathBuf, Manifest)> {
    let complete = |path: PathBuf| check_sizes(&path).ok().map(|manifest| (path, manifest));
    let all = steps(dir).unwrap_or_default().into_iter().rev();
    let on_disk = all.map(|(_, path)| path).find_map(complete);
    let manifest = on_disk.as_ref().map(|(_, manifest)| manifest);
    memory.and_then(|memory| newer_state((memory, dir), manifest, check_sizes).found).or(on_disk)
}
