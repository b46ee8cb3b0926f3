//! The tokenizer of a checkpoint's model.

use std::path::{Component, Path, PathBuf};

use common::UserError;
use data::Tokenizer;

use crate::config::RunConfig;

/// The tokenizer that the run of the checkpoint in `folder` was configured with. `end` names the token that ends a document,
/// if it is not the run's. A relative path counts from the folder in which the run was started, if the checkpoint's place
/// shows it, else from the current folder.
///
/// # Errors
/// As [`Tokenizer::open`].
pub fn tokenizer_of(folder: &Path, config: &RunConfig, end: Option<&str>) -> Result<Tokenizer, UserError> {
    let name = &config.data.tokenizer;
    let theirs = config.checkpoint.dir.as_deref().and_then(|dir| started_in(folder, dir));
    let path = theirs.map(|started| started.join(name)).filter(|path| name != "byte" && path.exists());
    let name = path.map_or(name.clone(), |path| path.display().to_string());
    Tokenizer::open(&name, end.or(config.data.end_of_text.as_deref()))
}

/// The folder in which a run with this relative `checkpoint.dir` was started; `None` if the checkpoint has moved.
fn started_in(folder: &Path, dir: &str) -> Option<PathBuf> {
    let dir: PathBuf = Path::new(dir).components().filter(|part| *part != Component::CurDir).collect();
    let folder = folder.canonicalize().ok()?;
    let saved = folder.parent()?;
    let below = dir.components().all(|part| matches!(part, Component::Normal(_))) && saved.ends_with(&dir);
    below.then(|| saved.ancestors().nth(dir.components().count()).map(Path::to_path_buf))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_a_run_was_started_in_follows_from_the_place_of_its_checkpoint_unless_that_has_moved() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        let folder = root.join("a/saved/step-00000001");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(started_in(&folder, "saved"), Some(root.join("a")));
        assert_eq!(started_in(&folder, "./a/saved/"), Some(root.clone()));
        assert_eq!(started_in(&folder, "other"), None);
        assert_eq!(started_in(&folder, "../saved"), None);
        assert_eq!(started_in(&folder, root.join("a/saved").to_str().unwrap()), None);
        assert_eq!(started_in(&root.join("gone"), "saved"), None);
    }
}
