//! The paths that a run names, and whether a cluster has such paths.

use std::path::{Component, Path, PathBuf, absolute};

use common::UserError;
use data::{DataConfig, Missing, Paths};

use trainer::config::{Resume, RunConfig, recipes};

/// The paths that a run names, each with the setting's name.
pub(super) struct RunPaths {
    /// The files and folders that the run reads.
    inputs: Vec<(&'static str, String)>,
    /// The run's own folders.
    outputs: Vec<(&'static str, String)>,
    /// The file of `--config`. `None` for a recipe: the trainer itself has those.
    config: Option<String>,
    data: DataConfig,
}

impl RunPaths {
    /// The paths of a run with the given flags. `config` is the configuration made from them.
    pub(super) fn of(config: &RunConfig, flags: &[String]) -> RunPaths {
        let data = &config.data;
        let mut inputs: Vec<(&'static str, String)> = Vec::new();
        for (key, paths) in [("data.path", &data.path), ("data.validation_path", &data.validation_path)] {
            inputs.extend(paths.iter().flat_map(Paths::names).map(|path| (key, path.to_string())));
        }
        inputs.extend((data.tokenizer != "byte").then(|| ("data.tokenizer", data.tokenizer.clone())));
        inputs.extend(config.model.init_from.iter().map(|path| ("model.init_from", path.clone())));
        if let Resume::From(path) = &config.checkpoint.resume {
            inputs.push(("checkpoint.resume", path.clone()));
        }
        let saved = config.checkpoint.dir.iter().map(|path| ("checkpoint.dir", path.clone()));
        let outputs = saved.chain([("logging.dir", config.logging.dir.clone())]).collect();
        let named =
            flags.iter().zip(flags.iter().skip(1)).find(|(flag, _)| *flag == "--config").map(|(_, name)| name.as_str());
        let named = named.or_else(|| flags.iter().find_map(|flag| flag.strip_prefix("--config=")));
        let file = named.filter(|name| recipes::recipe(name).is_none() || Path::new(name).exists());
        RunPaths { inputs, outputs, config: file.map(String::from), data: data.clone() }
    }

    /// Checks that the run's inputs are on this machine, unless they lie in a folder that only the nodes have.
    ///
    /// # Errors
    /// The first path that is missing.
    pub(super) fn check_there(&self, only_on_nodes: &[String]) -> Result<(), UserError> {
        let mut looked_for = self.inputs.iter().filter(|(_, path)| !is_in(path, only_on_nodes));
        match looked_for.find(|(key, path)| !self.exists(key, path)) {
            Some((key, path)) => Err(UserError::new(
                format!("{key} = {path} is not on this machine"),
                "the job's machines share their files with this one",
                "check the path. If only the job's machines have it: --only-on-nodes FOLDER",
            )),
            None => Ok(()),
        }
    }

    fn exists(&self, key: &str, path: &str) -> bool {
        if !key.starts_with("data.") || key == "data.tokenizer" {
            return Path::new(path).exists();
        }
        // Data may be named by a pattern, or by the prefix of their files.
        let alone = DataConfig { path: Some(Paths::One(path.into())), validation_path: None, ..self.data.clone() };
        Missing::of(&alone).is_none()
    }

    /// Checks that a container sees the paths that the run names: in the current folder, or in one of `folders`.
    ///
    /// # Errors
    /// The first path that it does not see.
    pub(super) fn check_container(&self, folders: &[String], only_on_nodes: &[String]) -> Result<(), UserError> {
        let seen: Vec<String> = [".".to_string()].iter().chain(folders).cloned().collect();
        let config = self.config.iter().map(|path| ("--config", path));
        let mut named = self.inputs.iter().chain(&self.outputs).map(|(key, path)| (*key, path)).chain(config);
        match named.find(|(_, path)| !is_seen(path, &seen) && !is_in(path, only_on_nodes)) {
            Some((key, path)) => Err(UserError::new(
                format!("{key} = {path} is not in the container"),
                "containers see the current folder and those of --container-mounts",
                "add its folder: --container-mounts FOLDER. If it is a part of the image: --only-on-nodes FOLDER",
            )),
            None => Ok(()),
        }
    }

    /// Checks the paths of a run in pods. Pods see their image and the storage at `mount`. Returns notices.
    ///
    /// # Errors
    /// A path or a file of this machine.
    pub(super) fn check_pods(&self, mount: &str) -> Result<Vec<String>, UserError> {
        if !mount.starts_with('/') {
            return Err(UserError::new(
                format!("--mount {mount}"),
                "it is an absolute path",
                "for example --mount /data",
            ));
        }
        if let Some(file) = &self.config {
            return Err(UserError::new(
                format!("--config {file}"),
                "pods do not see the files of this machine",
                "use a recipe (`trainer configs list`), or write its settings as flags, --set KEY=VALUE",
            ));
        }
        let save = self.outputs.iter().filter(|(key, _)| *key == "checkpoint.dir");
        let named: Vec<&(&str, String)> = self.inputs.iter().chain(save).collect();
        if let Some((key, path)) = named.iter().find(|(_, path)| !path.starts_with('/')) {
            return Err(UserError::new(
                format!("{key} = {path} in a pod"),
                format!("pods see their image and the shared storage at {mount}, no folder of this machine"),
                format!("put it on that storage, and name it by its path there, such as {mount}/{path}"),
            ));
        }
        let outside = named.into_iter().filter(|(_, path)| !is_in(path, &[mount.to_string()]));
        Ok(outside
            .map(|(key, path)| {
                format!("{key} = {path} is not on the shared storage at {mount}. It must be in the image of every pod")
            })
            .collect())
    }
}

/// Whether a path lies in one of the folders, as written.
fn is_in(path: &str, folders: &[String]) -> bool {
    let path = whole(path);
    folders.iter().any(|folder| path.starts_with(whole(folder)))
}

/// Whether a container that mounts the folders sees the path: it lies in one of them, and does not leave it by a link.
fn is_seen(path: &str, folders: &[String]) -> bool {
    let path = whole(path);
    let in_folder = |folder: PathBuf| path.starts_with(&folder) && real(&path).starts_with(real(&folder));
    folders.iter().any(|folder| in_folder(whole(folder)))
}

/// The absolute path without `..`.
fn whole(path: &str) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in absolute(path).unwrap_or_else(|_| path.into()).components() {
        match part {
            Component::ParentDir => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    whole
}

/// The path with links followed, as far as the path exists.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|part| Some((part.canonicalize().ok()?, path.strip_prefix(part).ok()?)));
    there.map_or(path.into(), |(real, rest)| real.join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_in_a_folder_whatever_way_it_is_written() {
        let folders = ["/scratch".to_string(), ".".to_string()];
        for path in ["/scratch", "/scratch/a", "/x/../scratch/a", "texts", "./texts/../ckpt"] {
            assert!(is_in(path, &folders), "{path}");
        }
        for path in ["/scratch2", "../texts", "/scratch/../data"] {
            assert!(!is_in(path, &folders), "{path}");
        }
    }

    #[test]
    fn a_link_out_of_a_folder_is_not_seen_and_a_link_to_a_folder_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        std::fs::create_dir(path("disk")).unwrap();
        std::fs::create_dir(path("mounted")).unwrap();
        std::os::unix::fs::symlink(path("disk"), path("mounted/out")).unwrap();
        std::os::unix::fs::symlink(path("mounted"), path("link")).unwrap();
        assert!(is_seen(&path("mounted/new/file"), &[path("mounted")]));
        assert!(is_seen(&path("link/new"), &[path("link")]));
        assert!(!is_seen(&path("mounted/out/file"), &[path("mounted")]));
        assert!(!is_seen(&path("mounted/new"), &[path("link")]), "the container has only the link's name");
    }
}
