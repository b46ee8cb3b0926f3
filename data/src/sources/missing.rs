//! Data that do not exist yet.

use std::path::Path;

use device::{HostValues, Staging};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::found::expanded;
use crate::source::{Source, Split};

/// Takes the place of missing files if a run is only planned.
pub struct Missing(String);

impl Missing {
    /// For the first path of `data.path` or `data.validation_path` that does not exist. `None` if all exist.
    pub fn of(data: &DataConfig) -> Option<Missing> {
        let named = [("data.path", &data.path), ("data.validation_path", &data.validation_path)];
        named.into_iter().find_map(|(key, paths)| {
            let missing = paths.as_ref()?.names().find(|name| !exists(name))?;
            Some(Missing(format!("{key} = {missing} is missing; a run needs it")))
        })
    }
}

/// Whether the name is that of a file, a folder, the prefix of a Megatron dataset, or a pattern of paths that exist.
fn exists(name: &str) -> bool {
    let is_there = |path: &str| Path::new(path).exists() || Path::new(&format!("{path}.bin")).exists();
    expanded("data", &[name]).is_ok_and(|paths| paths.iter().all(|path| is_there(path)))
}

impl Source for Missing {
    fn batch(&self, _: Split, _: u64, _: usize, _: &Staging) -> Result<HostValues, DataError> {
        Err(DataError { what: self.0.clone(), fix: "check the path".into() })
    }

    fn describe(&self) -> String {
        self.0.clone()
    }
}
