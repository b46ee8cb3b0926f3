//! Weights in a folder of safetensors files, read one tensor at a time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::DataType;
use super::names::Entry;
use crate::config::UserError;

/// A tensor of a file's header.
#[derive(Clone, Debug, Deserialize)]
struct Header {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// A tensor: where it lies and what it is.
struct Located {
    file: usize,
    header: Header,
    /// Where the file's data begins.
    data: u64,
}

/// The tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` lists.
pub struct WeightFolder {
    folder: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, Located>,
}

/// Something of a folder's files is not as it must be.
fn broken(path: &Path, problem: impl std::fmt::Display) -> UserError {
    UserError::new(
        format!("{} {problem}", path.display()),
        "weights are safetensors files, as `transformers` saves them",
        "get the file again, or save the model anew",
    )
}

impl WeightFolder {
    /// Reads the headers of a folder's files.
    ///
    /// # Errors
    /// No weights there, or files that are not whole.
    pub fn open(folder: &Path) -> Result<WeightFolder, UserError> {
        let index = folder.join("model.safetensors.index.json");
        let names: Vec<String> = if index.exists() {
            #[derive(Deserialize)]
            struct Index {
                weight_map: HashMap<String, String>,
            }
            let text = std::fs::read(&index).map_err(|error| broken(&index, format!("cannot be read: {error}")))?;
            let parsed: Index =
                serde_json::from_slice(&text).map_err(|error| broken(&index, format!("is not an index: {error}")))?;
            let mut names: Vec<String> = parsed.weight_map.into_values().collect();
            names.sort();
            names.dedup();
            names
        } else {
            vec!["model.safetensors".into()]
        };
        let mut weights = WeightFolder { folder: folder.into(), files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            weights.add(folder.join(name))?;
        }
        Ok(weights)
    }

    /// Reads the header of one more file.
    fn add(&mut self, path: PathBuf) -> Result<(), UserError> {
        let unreadable = |error: std::io::Error| broken(&path, format!("cannot be read: {error}"));
        let file = File::open(&path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        // The format's own limit on headers: 100 MB.
        if length > 100_000_000 || length + 8 > bytes {
            return Err(broken(&path, format!("says its header has {length} bytes, of {bytes} in all")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(unreadable)?;
        let not_a_header = |error: serde_json::Error| broken(&path, format!("has a header that is not one: {error}"));
        let mut header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&header).map_err(not_a_header)?;
        header.remove("__metadata__");
        for (name, value) in header {
            let header: Header = serde_json::from_value(value).map_err(not_a_header)?;
            let [begin, end] = header.data_offsets;
            if begin > end || end > bytes - 8 - length {
                return Err(broken(&path, format!("ends before its tensor `{name}` does")));
            }
            let located = Located { file: self.files.len(), header, data: 8 + length };
            if self.tensors.insert(name.clone(), located).is_some() {
                return Err(broken(&path, format!("has `{name}`, as another file does")));
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// The tensor of that name, with or without the prefix of a model with a head.
    fn find(&self, name: &str) -> Option<(&str, &Located)> {
        let bare = name.strip_prefix("transformer.").or_else(|| name.strip_prefix("model."));
        let found = self.tensors.get_key_value(name).or_else(|| self.tensors.get_key_value(bare?));
        found.map(|(name, located)| (name.as_str(), located))
    }

    /// A parameter's values in our layout. Learned positions may be more than wanted: the first are taken.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or a type that is not f32, f16 or bf16.
    pub fn parameter(&self, entry: &Entry) -> Result<Vec<f32>, UserError> {
        let mut parts = Vec::with_capacity(entry.parts.len());
        for part in &entry.parts {
            let wanted = entry.part_shape(part);
            let missing = || broken(&self.folder, format!("has no tensor `{}`", part.name));
            let (name, located) = self.find(&part.name).ok_or_else(missing)?;
            let found = &located.header.shape;
            let longer =
                entry.name == "wpe.weight" && found.len() == 2 && found[1..] == wanted[1..] && found[0] >= wanted[0];
            if *found != wanted && !longer {
                return Err(UserError::new(
                    format!("tensor `{name}` of {} has shape {found:?}, the model {wanted:?}", self.folder.display()),
                    "weights fit the model's options",
                    "leave out the model options that differ from the folder's own",
                ));
            }
            let mut values = self.values(name, located)?;
            values.truncate(wanted.iter().product());
            parts.push(values);
        }
        Ok(entry.join(&parts))
    }

    fn values(&self, name: &str, located: &Located) -> Result<Vec<f32>, UserError> {
        let (path, file) = &self.files[located.file];
        let Header { dtype, shape, data_offsets: [begin, end] } = &located.header;
        let Some(dtype) = DataType::named(dtype) else {
            return Err(broken(path, format!("has `{name}` as {dtype}, which is not F32, F16 or BF16")));
        };
        let elements = shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
        if elements.and_then(|elements| elements.checked_mul(dtype.size() as u64)) != Some(end - begin) {
            return Err(broken(path, format!("has `{name}` with shape {shape:?} in {} bytes", end - begin)));
        }
        let mut bytes = vec![0; (end - begin) as usize];
        file.read_exact_at(&mut bytes, located.data + begin)
            .map_err(|error| broken(path, format!("cannot be read: {error}")))?;
        Ok(dtype.decode(&bytes))
    }

    /// Fails on a tensor that no parameter takes: the model would not be the one that was saved.
    ///
    /// # Errors
    /// Names it.
    pub fn all_taken(&self, entries: &[Entry]) -> Result<(), UserError> {
        let parts = entries.iter().flat_map(|entry| &entry.parts);
        let taken: Vec<&str> = parts.filter_map(|part| self.find(&part.name)).map(|(name, _)| name).collect();
        let taken: std::collections::HashSet<&str> = taken.into_iter().collect();
        let tied = !entries.iter().any(|entry| entry.name == "lm_head.weight");
        // Masks and frequencies that older versions saved, and a tied head that was saved as well.
        let known = |name: &str| {
            [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
                || (tied && name == "lm_head.weight")
        };
        match self.tensors.keys().find(|name| !taken.contains(name.as_str()) && !known(name)) {
            Some(name) => {
                Err(broken(&self.folder, format!("has a tensor `{name}` that no parameter of the model takes")))
            }
            None => Ok(()),
        }
    }
}
