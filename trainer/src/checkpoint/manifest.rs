//! The manifest: which files a checkpoint has, and what lies in them.

use std::io::ErrorKind;
use std::path::Path;

use data::Identities;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";

/// The version of the format that this build writes and reads.
const FORMAT: u32 = 1;

/// How far a run is, between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub step: usize,
    /// Samples consumed by all ranks: the number of the next sample.
    pub samples: u64,
}

/// A checkpoint's description of itself.
///
/// Its hash covers the text that is written. To keep older checkpoints readable, a new field comes after the other optional
/// ones, and is left out where it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Steps done.
    pub step: usize,
    /// Samples consumed by all ranks.
    pub samples: u64,
    /// Updates applied: the `t` of Adam's bias correction.
    pub applied: u32,
    /// Updates skipped because a gradient was not finite.
    pub skipped: u32,
    /// How the GPU's library computes each matrix product, so that a resumed run computes the same bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<String>,
    /// The name of the run, by which it recognises its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The identities of the data, so that a resumed run notices that they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Identities>,
    /// Every file but this one.
    pub files: Vec<FileEntry>,
    /// Every part of every tensor.
    pub tensors: Vec<TensorEntry>,
    /// SHA-256 of this manifest as compact JSON with this field empty.
    pub sha256: String,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content, in hexadecimal.
    pub sha256: String,
}

/// The part of a tensor that a file has. The parts of a tensor may lie in several files. They cover it and do not overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The tensor's name.
    pub name: String,
    /// The file.
    pub file: String,
    /// Its name in the file, where that is not the tensor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The whole tensor's shape, padding not counted.
    pub shape: Vec<usize>,
    /// The part's first element in the whole, by axis.
    pub offset: Vec<usize>,
    /// The part's shape.
    pub sizes: Vec<usize>,
}

/// What is wrong with a checkpoint, and in which of its files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} {problem}")]
pub struct Damage {
    /// The file's name in the folder.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
    /// Whether the checkpoint may still be complete: the system does not let it be read now, or this build cannot read it.
    pub may_be_complete: bool,
}

impl Damage {
    pub(super) fn new(file: &str, problem: impl Into<String>) -> Damage {
        Damage { file: file.into(), problem: problem.into(), may_be_complete: false }
    }

    pub(super) fn unreadable(file: &str, error: &std::io::Error) -> Damage {
        match error.kind() {
            ErrorKind::NotFound => Damage::new(file, "is missing"),
            // A shortened file is damaged, not unreadable.
            ErrorKind::UnexpectedEof => Damage::new(file, "ends too soon"),
            _ => Damage { may_be_complete: true, ..Damage::new(file, format!("cannot be read: {error}")) },
        }
    }
}

impl Manifest {
    /// A manifest of this format, its own hash not yet set.
    pub fn new(progress: Progress, applied: u32, skipped: u32) -> Manifest {
        let Progress { step, samples } = progress;
        Manifest { format: FORMAT, step, samples, applied, skipped, ..Manifest::default() }
    }

    /// Where the run stood.
    pub fn progress(&self) -> Progress {
        Progress { step: self.step, samples: self.samples }
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The file's content, with the hash in place.
    pub(super) fn seal(&mut self) -> Vec<u8> {
        self.sha256 = self.digest();
        serde_json::to_vec_pretty(self).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"))
    }

    fn digest(&self) -> String {
        let open = Manifest { sha256: String::new(), ..self.clone() };
        let text = serde_json::to_vec(&open).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"));
        hex(&Sha256::digest(text))
    }

    /// Reads the manifest of a checkpoint's folder.
    ///
    /// # Errors
    /// A file that is missing, is not a manifest, is of another format or differs from its own hash.
    pub fn read(folder: &Path) -> Result<Manifest, Damage> {
        let damage = |problem: String| Damage::new(MANIFEST, problem);
        let text = std::fs::read(folder.join(MANIFEST)).map_err(|error| Damage::unreadable(MANIFEST, &error))?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| damage(format!("is not JSON: {error}")))?;
        // A newer format may have other fields, so its number is checked first.
        if value["format"] != FORMAT {
            let problem = format!("is of format {}; this build reads format {FORMAT}", value["format"]);
            return Err(Damage { may_be_complete: true, ..damage(problem) });
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|error| damage(format!("is not a manifest: {error}")))?;
        if manifest.digest() != manifest.sha256 {
            return Err(damage("differs from its own SHA-256".into()));
        }
        match manifest.tensors.iter().find(|tensor| !tensor.is_part()) {
            Some(tensor) => Err(damage(format!("places `{}` outside its shape", tensor.name))),
            None => Ok(manifest),
        }
    }
}

impl TensorEntry {
    /// Whether offset and sizes describe a part of the shape.
    fn is_part(&self) -> bool {
        let axes = self.shape.len();
        let inside =
            |axis: usize| self.offset[axis].checked_add(self.sizes[axis]).is_some_and(|end| end <= self.shape[axis]);
        self.offset.len() == axes && self.sizes.len() == axes && (0..axes).all(inside)
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an earlier build wrote it.
    const WRITTEN_BEFORE: &str = r#"{"format":1,"step":7,"samples":56,"applied":6,"skipped":1,"products":"p","run":"r","data":{"data.path":{"tokens":9,"sha256":"aa"}},"files":[{"name":"model.safetensors","bytes":12,"sha256":"bb"}],"tensors":[{"name":"wte.weight","file":"model.safetensors","key":"k","shape":[4,2],"offset":[2,0],"sizes":[2,2]}],"sha256":"ec39d00335107a7b76738205c4c9e95d57e230437042f10e18a6fd280e6108ac"}"#;

    #[test]
    fn a_manifest_that_an_earlier_build_wrote_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(folder.path().join(MANIFEST), text).unwrap();
            Manifest::read(folder.path())
        };
        let manifest = read(WRITTEN_BEFORE).unwrap();
        assert_eq!(
            (manifest.progress(), manifest.tensors[0].sizes.clone()),
            (Progress { step: 7, samples: 56 }, vec![2, 2])
        );
        let shortest = Manifest { products: None, run: None, data: None, tensors: Vec::new(), ..manifest };
        assert!(read(&String::from_utf8(shortest.clone().seal()).unwrap()).is_ok());
        let changed = read(&WRITTEN_BEFORE.replace(":56,", ":57,")).unwrap_err();
        assert_eq!((changed.problem.as_str(), changed.may_be_complete), ("differs from its own SHA-256", false));
        assert!(read(&WRITTEN_BEFORE.replace("\"format\":1", "\"format\":2")).unwrap_err().may_be_complete);
    }
}
