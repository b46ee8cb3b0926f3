//! The manifest: the files of a checkpoint, and their contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use common::Choice;
use common::escape::one_line;
use common::files::{is_plain_name, open_unlinked, read_at_most};
use data::Identities;
use engine::optimizer::StepHistory;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::content_hash::ContentHash;
use super::file::Single;
use super::header::MOST_AXES;
use super::step_name::step_of;
use super::validated::ValidationEntry;

/// The manifest's file name.
pub const MANIFEST: &str = Single::WORDS[Single::Manifest as usize];

/// The version of the format that this build writes. It reads those before too: in format 1 files have SHA-256.
const FORMAT: u32 = 2;

/// The largest manifest that is read, in bytes. One for a model of 70 G parameters on 512 ranks has a few MiB.
pub(super) const LARGEST: u64 = 256 << 20;

/// Most elements of a tensor, as for a model's options.
const MOST_ELEMENTS: usize = 1 << 44;

/// Most parts of a tensor: each is compared with the others.
const MOST_PARTS: usize = 1 << 14;

/// How far a run is, between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub step: usize,
    /// Samples consumed by all ranks: the number of the next sample.
    pub samples: u64,
}

/// The description of a checkpoint.
///
/// Its hash covers the text that is written. To keep older checkpoints readable, a new field comes after the other
/// optional ones, and is left out if it is empty.
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
    /// The name of the run. The run recognises its metrics by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The identities of the data, so that a resumed run notices changed data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Identities>,
    /// The losses and norms of the last steps, if the run skips spikes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spikes: Option<SpikeEntry>,
    /// The validation losses so far, if the run was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationEntry>,
    /// Every file of the checkpoint but the manifest.
    pub files: Vec<FileEntry>,
    /// Every part of every tensor.
    pub tensors: Vec<TensorEntry>,
    /// SHA-256 of this manifest as compact JSON with this field empty.
    pub sha256: String,
}

/// Losses and gradient norms of the last steps, from the oldest to the newest. Spikes are found by them. Each is the
/// bits of an f32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpikeEntry {
    /// Updates skipped because of a spike.
    pub skipped: u32,
    /// Mean losses.
    pub losses: Vec<u32>,
    /// Gradient norms before clipping.
    pub norms: Vec<u32>,
}

impl SpikeEntry {
    pub(super) fn new(skipped: u32, history: &StepHistory) -> SpikeEntry {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
        SpikeEntry { skipped, losses: bits(&history.losses), norms: bits(&history.norms) }
    }

    pub(super) fn history(&self) -> StepHistory {
        let values = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        StepHistory { losses: values(&self.losses), norms: values(&self.norms) }
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FileFields", into = "FileFields")]
pub struct FileEntry {
    /// The file's name in the folder.
    pub name: String,
    /// The file's size.
    pub bytes: u64,
    /// The hash of the file's content.
    pub hash: ContentHash,
}

/// A [`FileEntry`] in the text of a manifest: one of the hashes, by the name of its kind.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    name: String,
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
}

impl From<FileEntry> for FileFields {
    fn from(FileEntry { name, bytes, hash }: FileEntry) -> FileFields {
        let (sha256, blake3) = match hash {
            ContentHash::Sha256(hash) => (Some(hash), None),
            ContentHash::Blake3(hash) => (None, Some(hash)),
        };
        FileFields { name, bytes, sha256, blake3 }
    }
}

impl TryFrom<FileFields> for FileEntry {
    type Error = String;

    fn try_from(FileFields { name, bytes, sha256, blake3 }: FileFields) -> Result<FileEntry, String> {
        let hash = match (sha256, blake3) {
            (Some(hash), None) => ContentHash::Sha256(hash),
            (None, Some(hash)) => ContentHash::Blake3(hash),
            _ => return Err(format!("file `{name}` has no hash, or two")),
        };
        Ok(FileEntry { name, bytes, hash })
    }
}

/// The part of a tensor that a file has. The parts of a tensor may lie in several files. They cover it and do not overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// The tensor's name.
    pub name: String,
    /// The file.
    pub file: String,
    /// The tensor's name in the file, if that is not the tensor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The whole tensor's shape, padding not counted.
    pub shape: Vec<usize>,
    /// The part's first element in the whole, by axis.
    pub offset: Vec<usize>,
    /// The part's shape.
    pub sizes: Vec<usize>,
}

/// Damage of a checkpoint, and the damaged file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} {problem}")]
pub struct Damage {
    /// The file's name in the folder.
    pub file: String,
    /// The problem with the file.
    pub problem: String,
    /// Whether the checkpoint is lost.
    pub extent: Extent,
}

/// Whether a damaged checkpoint is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The file's content differs from the content that was written.
    Lost,
    /// The checkpoint may be complete: the system does not let it be read now, or this build cannot read it.
    Unreadable,
    /// The checkpoint has links or other things in place of files. Their targets may be complete, but are not read.
    NotFiles,
}

impl Damage {
    pub(super) fn new(file: &str, problem: impl Into<String>) -> Damage {
        // Both may have text from the checkpoint's files.
        Damage { file: one_line(file), problem: one_line(&problem.into()), extent: Extent::Lost }
    }

    pub(super) fn unreadable(file: &str, error: &std::io::Error) -> Damage {
        match error.kind() {
            ErrorKind::NotFound => Damage::new(file, "is missing"),
            // A shortened file is damaged, not unreadable.
            ErrorKind::UnexpectedEof => Damage::new(file, "ends too soon"),
            // Of opening a file; see `open_unlinked`.
            ErrorKind::InvalidInput => {
                let problem = format!("cannot be read: {error}, and checkpoints have regular files");
                Damage { extent: Extent::NotFiles, ..Damage::new(file, problem) }
            }
            ErrorKind::FileTooLarge => Damage::new(file, format!("cannot be read: {error}")),
            _ => Damage { extent: Extent::Unreadable, ..Damage::new(file, format!("cannot be read: {error}")) },
        }
    }
}

impl Manifest {
    /// A manifest of this format, the manifest's hash not yet set.
    pub fn new(progress: Progress, applied: u32, skipped: u32) -> Manifest {
        let Progress { step, samples } = progress;
        Manifest { format: FORMAT, step, samples, applied, skipped, ..Manifest::default() }
    }

    /// The steps and samples that the run had done.
    pub fn progress(&self) -> Progress {
        Progress { step: self.step, samples: self.samples }
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |all, file| all.saturating_add(file.bytes))
    }

    /// Whether the manifest lists a file of that name.
    pub(super) fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
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

    /// Reads the manifest of a checkpoint's folder, and checks that it describes one.
    ///
    /// # Errors
    /// A file that is missing, is not a manifest, is of another format or differs from its own hash; names that are no plain
    /// file names; parts of tensors that lie outside them, overlap or do not cover them; another step than the folder's name
    /// says.
    pub fn read(folder: &Path) -> Result<Manifest, Damage> {
        let damage = |problem: String| Damage::new(MANIFEST, problem);
        let file = open(folder, MANIFEST)?;
        let text = read_at_most(file, LARGEST).map_err(|error| Damage::unreadable(MANIFEST, &error))?;
        // A newer format may have other fields, so its number is checked first.
        #[derive(Deserialize)]
        struct Version {
            format: serde_json::Value,
        }
        let Version { format } =
            serde_json::from_slice(&text).map_err(|error| damage(format!("is not JSON with a format: {error}")))?;
        if !(1..=FORMAT).any(|known| format == known) {
            let problem = format!("is of format {format}; this build reads formats 1 to {FORMAT}");
            return Err(Damage { extent: Extent::Unreadable, ..damage(problem) });
        }
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| damage(format!("is not a manifest: {error}")))?;
        if manifest.digest() != manifest.sha256 {
            return Err(damage("differs from its own SHA-256".into()));
        }
        manifest.check(folder).map_err(damage)?;
        Ok(manifest)
    }

    /// Fails, in words, on a manifest that describes no checkpoint. A hash says only that nothing changed since.
    fn check(&self, folder: &Path) -> Result<(), String> {
        if let Some(step) = step_of(folder).filter(|step| *step != self.step) {
            return Err(format!("is of step {}, and its folder's name says {step}", self.step));
        }
        let mut files = BTreeSet::new();
        for FileEntry { name, .. } in &self.files {
            if !is_plain_name(name) || name == MANIFEST {
                return Err(format!("names a file `{name}`, which is no name of a file in its folder"));
            }
            if !files.insert(name.as_str()) {
                return Err(format!("names the file `{name}` twice"));
            }
        }
        let mut tensors: BTreeMap<&str, Vec<&TensorEntry>> = BTreeMap::new();
        let mut keys = BTreeSet::new();
        for tensor in &self.tensors {
            let TensorEntry { name, file, .. } = tensor;
            if !files.contains(file.as_str()) {
                return Err(format!("has `{name}` in `{file}`, which is not among its files"));
            }
            if !keys.insert((file.as_str(), tensor.key())) {
                return Err(format!("has `{}` of `{file}` twice", tensor.key()));
            }
            if !tensor.is_part() {
                return Err(format!("places `{name}` outside its shape"));
            }
            tensors.entry(name).or_default().push(tensor);
        }
        tensors.into_iter().try_for_each(|(name, parts)| make_up_a_tensor(name, parts))
    }
}

/// Fails unless the parts of a tensor cover the whole and do not overlap.
fn make_up_a_tensor(name: &str, mut parts: Vec<&TensorEntry>) -> Result<(), String> {
    let shape = &parts[0].shape;
    if parts.iter().any(|part| part.shape != *shape) {
        return Err(format!("gives `{name}` two shapes"));
    }
    if parts.len() > MOST_PARTS {
        return Err(format!("divides `{name}` into {} parts; most are {MOST_PARTS}", parts.len()));
    }
    // A part can overlap only those after it, in this order, that begin before it ends along the first axis.
    parts.sort_by(|a, b| a.offset.cmp(&b.offset));
    for (number, part) in parts.iter().enumerate() {
        let end = part.end(0);
        let near = parts[number + 1..].iter().take_while(|other| other.offset.first() < end.as_ref());
        if near.into_iter().any(|other| part.overlaps(other)) || (shape.is_empty() && number > 0) {
            return Err(format!("has parts of `{name}` that overlap"));
        }
    }
    // No sum overflows: parts that do not overlap are no more than the whole.
    let (there, all): (usize, usize) =
        (parts.iter().map(|part| part.sizes.iter().product::<usize>()).sum(), shape.iter().product());
    if there != all { Err(format!("has {there} of the {all} elements of `{name}`")) } else { Ok(()) }
}

/// Opens a file of a checkpoint to read.
///
/// # Errors
/// As [`Damage::unreadable`]; a link, or something else that is not a regular file.
pub(super) fn open(folder: &Path, name: &str) -> Result<File, Damage> {
    open_unlinked(&folder.join(name)).map_err(|error| Damage::unreadable(name, &error))
}

impl TensorEntry {
    /// The part's name in the file.
    pub fn key(&self) -> &str {
        self.key.as_ref().unwrap_or(&self.name)
    }

    /// Whether offset and sizes describe a part of the shape, and the shape a tensor that may exist.
    fn is_part(&self) -> bool {
        let axes = self.shape.len();
        let inside =
            |axis: usize| self.offset[axis].checked_add(self.sizes[axis]).is_some_and(|end| end <= self.shape[axis]);
        let elements = self.shape.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
        axes <= MOST_AXES
            && elements.is_some_and(|elements| elements <= MOST_ELEMENTS)
            && self.offset.len() == axes
            && self.sizes.len() == axes
            && (0..axes).all(inside)
    }

    /// The end of the part along an axis; `None` without such an axis.
    fn end(&self, axis: usize) -> Option<usize> {
        Some(self.offset.get(axis)? + self.sizes.get(axis)?)
    }

    /// Whether two parts of one tensor have elements in common.
    fn overlaps(&self, other: &TensorEntry) -> bool {
        let begins = |part: &TensorEntry, axis: usize| part.offset.get(axis).copied();
        (0..self.shape.len()).all(|axis| begins(self, axis) < other.end(axis) && begins(other, axis) < self.end(axis))
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

    /// The text of a manifest that an earlier build wrote.
    const WRITTEN_BEFORE: &str = r#"{"format":1,"step":7,"samples":56,"applied":6,"skipped":1,"products":"p","run":"r","data":{"data.path":{"tokens":9,"sha256":"aa"}},"files":[{"name":"model.safetensors","bytes":12,"sha256":"bb"}],"tensors":[{"name":"wte.weight","file":"model.safetensors","key":"k","shape":[4,2],"offset":[2,0],"sizes":[2,2]},{"name":"wte.weight","file":"model.safetensors","shape":[4,2],"offset":[0,0],"sizes":[2,2]}],"sha256":"1431c422108de6ae78280f8006b455d429911ae6fa6938eda0fd0c30ed142aa9"}"#;

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
        assert_eq!((changed.problem.as_str(), changed.extent), ("differs from its own SHA-256", Extent::Lost));
        assert_eq!(
            read(&WRITTEN_BEFORE.replace("\"format\":1", "\"format\":3")).unwrap_err().extent,
            Extent::Unreadable
        );
        for (hashes, words) in [
            (r#""sha256":"bb","more":1"#, "unknown field `more`"),
            (r#""sha256":"bb","blake3":"bb""#, "`model.safetensors` has no hash, or two"),
        ] {
            let damage = read(&WRITTEN_BEFORE.replace(r#""sha256":"bb""#, hashes)).unwrap_err();
            assert!(damage.problem.contains(words) && damage.extent == Extent::Lost, "{damage}");
        }
    }

    /// A sound manifest of one tensor in two parts, as `change` makes it, in a folder of that name.
    fn refusal(folder_name: &str, change: impl Fn(&mut Manifest)) -> String {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(folder_name);
        std::fs::create_dir(&folder).unwrap();
        let mut manifest: Manifest = serde_json::from_str(WRITTEN_BEFORE).unwrap();
        change(&mut manifest);
        std::fs::write(folder.join(MANIFEST), manifest.seal()).unwrap();
        Manifest::read(&folder).err().map_or(String::new(), |damage| damage.problem)
    }

    #[test]
    fn parts_of_a_tensor_cover_it_and_do_not_overlap() {
        let of = |change: &dyn Fn(&mut Vec<TensorEntry>)| refusal("x", |manifest| change(&mut manifest.tensors));
        assert_eq!(of(&|_| ()), "");
        assert_eq!(of(&|parts| parts[0].offset = vec![1, 0]), "has parts of `wte.weight` that overlap");
        assert_eq!(of(&|parts| parts[0].offset = vec![3, 0]), "places `wte.weight` outside its shape");
        assert_eq!(of(&|parts| parts[0].offset = vec![usize::MAX, 0]), "places `wte.weight` outside its shape");
        assert_eq!(of(&|parts| parts[0].offset.push(0)), "places `wte.weight` outside its shape");
        assert_eq!(of(&|parts| parts[0].sizes = vec![1, 2]), "has 6 of the 8 elements of `wte.weight`");
        assert_eq!(of(&|parts| parts[0].shape = vec![4, 3]), "gives `wte.weight` two shapes");
        assert_eq!(of(&|parts| parts[0].key = None), "has `wte.weight` of `model.safetensors` twice");
        assert!(of(&|parts| parts[0].file = "other".into()).contains("which is not among its files"));
        let huge = |parts: &mut Vec<TensorEntry>| {
            parts.truncate(1);
            let part = &mut parts[0];
            (part.shape, part.offset, part.sizes) = (vec![usize::MAX; 3], vec![0; 3], vec![usize::MAX; 3]);
        };
        assert_eq!(of(&huge), "places `wte.weight` outside its shape");
    }

    #[test]
    fn a_manifest_names_files_of_its_own_folder_and_has_the_step_of_the_folders_name() {
        for name in ["../x", "/etc/passwd", "a/b", "..", "", MANIFEST, "x\u{1b}[2J"] {
            let problem = refusal("x", |manifest| manifest.files[0].name = name.into());
            assert!(problem.contains("no name of a file in its folder") && !problem.contains('\u{1b}'), "{problem}");
        }
        assert!(refusal("x", |manifest| manifest.files.push(manifest.files[0].clone())).contains("twice"));
        assert_eq!(refusal("step-00000007", |_| ()), "");
        assert_eq!(refusal("step-00000008", |_| ()), "is of step 7, and its folder's name says 8");
    }

    #[test]
    fn many_parts_are_compared_in_bounded_time() {
        let began = std::time::Instant::now();
        let split = |axis: usize, parts: usize| {
            refusal("x", |manifest| {
                let whole = manifest.tensors.remove(0);
                manifest.tensors = (0..parts)
                    .map(|number| {
                        let mut part = TensorEntry { key: Some(number.to_string()), ..whole.clone() };
                        (part.shape, part.offset, part.sizes) = (vec![1; 2], vec![0; 2], vec![1; 2]);
                        (part.shape[axis], part.offset[axis]) = (parts, number);
                        part
                    })
                    .collect();
            })
        };
        assert_eq!([split(0, MOST_PARTS), split(1, MOST_PARTS)], ["", ""]);
        assert!(split(0, MOST_PARTS + 1).contains("most are"));
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
    }
}
