//! The names of the folders of checkpoints.

use std::path::Path;

/// The name of the checkpoint after so many steps.
pub(super) fn step_name(step: usize) -> String {
    format!("step-{step:08}")
}

/// The meaning of a folder's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderName {
    /// A checkpoint after so many steps.
    Checkpoint(usize),
    /// A checkpoint that is being written or removed.
    Temporary,
}

/// The meaning of a path's last part; `None` for a part that is not exactly a name that a run gives.
pub(super) fn folder_name(path: &Path) -> Option<FolderName> {
    let name = path.file_name()?.to_str()?;
    let digits = |text: &str| text.parse().ok().filter(|step| step_name(*step).strip_prefix("step-") == Some(text));
    let rest = name.strip_prefix("step-")?;
    match rest.strip_suffix(".old.tmp").or(rest.strip_suffix(".tmp")) {
        Some(rest) => digits(rest).map(|_| FolderName::Temporary),
        None => digits(rest).map(FolderName::Checkpoint),
    }
}

/// The steps of the checkpoint in a folder, from the folder's name; `None` for another name. A path such as `.` has the
/// name of the folder that it leads to.
pub(super) fn step_of(folder: &Path) -> Option<usize> {
    let of = |path: &Path| match folder_name(path) {
        Some(FolderName::Checkpoint(step)) => Some(step),
        _ => None,
    };
    of(folder).or_else(|| of(&folder.canonicalize().ok()?))
}
