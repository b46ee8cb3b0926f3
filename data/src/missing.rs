//! Data that are not there yet.

use std::path::Path;

use device::Batch;

use super::{DataError, Source, Split};
use crate::config::DataConfig;

/// Stands for files that are missing, in the plan of a run that will have them.
pub struct Missing(String);

impl Missing {
    /// The first path of `data.path` or `data.validation_path` with nothing there, if there is one.
    pub fn of(data: &DataConfig) -> Option<Missing> {
        let named = [("data.path", &data.path), ("data.validation_path", &data.validation_path)];
        named.into_iter().find_map(|(key, paths)| {
            let missing = paths.as_ref()?.names().find(|name| !is_there(name))?;
            Some(Missing(format!("{key} = {missing} is missing; a run needs it")))
        })
    }
}

/// Whether it is a file or folder, or one of Megatron's prefixes.
fn is_there(name: &str) -> bool {
    Path::new(name).exists() || Path::new(&format!("{name}.bin")).exists()
}

impl Source for Missing {
    fn batch(&self, _: Split, _: u64, _: usize) -> Result<Batch, DataError> {
        Err(DataError { what: self.0.clone(), fix: "check the path".into() })
    }

    fn describe(&self) -> String {
        self.0.clone()
    }
}
