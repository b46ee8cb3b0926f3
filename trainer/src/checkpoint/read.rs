//! Checking checkpoints and loading them.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use common::files::{open_unlinked, read_at_most};
use common::{Choice, UserError};
use device::ops::Status;
use device::{DType, bf16};
use engine::params::Slab;
use engine::step::Stage;
use launch::watch::activity::Activity;
use rayon::prelude::*;

use super::data_type::DataType;
use super::file::{KeptFile, Single, SourceFile};
use super::header::FileHeader;
use super::layout::{LocalTensor, Role, SlabMemory, is_optional, local_tensors, names_elsewhere};
use super::manifest::{Damage, FileEntry, Manifest, TensorEntry, open};
use crate::error::RunError;

/// Files are read and written in chunks of this many bytes. Each counts as progress.
pub(super) const CHUNK: usize = 1 << 20;

/// Bytes of a file that are compared at once.
const BLOCK: usize = 32 * CHUNK;

/// The largest file of metrics that is read, in bytes: those of several million steps.
const LARGEST_METRICS: u64 = 1 << 30;

/// The largest file of a Hugging Face model that is read, in bytes, weights apart. Tokenizers of 256 k tokens have 35 MB.
pub const LARGEST_SOURCE_FILE: u64 = 128 << 20;

/// The largest configuration that is read, in bytes.
const LARGEST_CONFIG: u64 = 16 << 20;

/// Fails unless the folder holds every file of the manifest in the right size. It reads no file but the manifest.
pub(super) fn check_sizes(folder: &Path) -> Result<Manifest, Damage> {
    let manifest = Manifest::read(folder)?;
    for FileEntry { name, bytes, .. } in &manifest.files {
        let found = open(folder, name)?.metadata().map_err(|error| Damage::unreadable(name, &error))?.len();
        if found != *bytes {
            return Err(Damage::new(name, format!("has {found} bytes instead of {bytes}")));
        }
    }
    Ok(manifest)
}

/// Reads every byte of a checkpoint, on all cores, and compares the bytes with the manifest. `activity` counts each MiB,
/// so that the watch sees progress.
///
/// # Errors
/// The first file that is missing, or has another size or content.
pub fn verify(folder: &Path, activity: &Activity) -> Result<Manifest, Damage> {
    let manifest = check_sizes(folder)?;
    match manifest.files.par_iter().find_map_first(|file| compare(folder, file, activity).err()) {
        Some(damage) => Err(damage),
        None => Ok(manifest),
    }
}

/// Fails unless a file has the hash that the manifest says.
fn compare(folder: &Path, entry: &FileEntry, activity: &Activity) -> Result<(), Damage> {
    let FileEntry { name, bytes, hash } = entry;
    let file = open(folder, name)?;
    let mut hasher = hash.hasher();
    let mut block = vec![0; BLOCK.min(*bytes as usize)];
    for first in (0..*bytes).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min((bytes - first) as usize)];
        read_exact(&file, first, block, activity).map_err(|error| Damage::unreadable(name, &error))?;
        hasher.add_on_all_cores(block);
    }
    match hasher.end() == *hash {
        true => Ok(()),
        false => Err(Damage::new(name, "differs from its hash in the manifest")),
    }
}

/// Fills the bytes from the bytes of a file that begin with byte `first`, on all cores.
fn read_exact(file: &File, first: u64, bytes: &mut [u8], activity: &Activity) -> std::io::Result<()> {
    bytes.par_chunks_mut(CHUNK).enumerate().try_for_each(|(number, chunk)| {
        file.read_exact_at(chunk, first + (number * CHUNK) as u64)?;
        activity.advance();
        Ok(())
    })
}

/// The configuration of the run that wrote the checkpoint, as TOML.
pub(super) fn config(folder: &Path) -> Result<String, Damage> {
    let text = content(folder, Single::Config.word(), LARGEST_CONFIG)?;
    String::from_utf8(text).map_err(|_| Damage::new(Single::Config.word(), "is not UTF-8 text"))
}

/// The lines of metrics that the checkpoint has; usually none.
pub(super) fn metrics_of(folder: &Path, manifest: &Manifest) -> Result<Vec<u8>, Damage> {
    match manifest.has_file(Single::Metrics.word()) {
        true => content(folder, Single::Metrics.word(), LARGEST_METRICS),
        false => Ok(Vec::new()),
    }
}

/// The files of the Hugging Face model that training began with, and the files' contents; usually none.
pub(super) fn source_files(folder: &Path, manifest: &Manifest) -> Result<Vec<KeptFile>, Damage> {
    let there = SourceFile::ALL.iter().filter(|file| manifest.has_file(file.word()));
    there.map(|file| Ok((*file, content(folder, file.word(), LARGEST_SOURCE_FILE)?))).collect()
}

/// The content of a file of at most `most` bytes.
fn content(folder: &Path, name: &str, most: u64) -> Result<Vec<u8>, Damage> {
    let content = open_unlinked(&folder.join(name)).and_then(|file| read_at_most(file, most));
    content.map_err(|error| Damage::unreadable(name, &error))
}

/// Loads weights, optimizer state and counters of a checkpoint into a stage, tensor by tensor. `activity` counts each MiB
/// and each tensor.
///
/// # Errors
/// A checkpoint of another model or optimizer, with names and shapes; a file that cannot be read; a device that cannot be
/// written.
pub fn load(folder: &Path, manifest: &Manifest, stage: &Stage, activity: &Activity) -> Result<(), RunError> {
    let device = stage.device();
    let tensors = local_tensors(stage);
    check_fits(folder, manifest, &tensors, &names_elsewhere(stage))?;
    let damaged = |damage| damaged(folder, &damage);
    let mut parts: BTreeMap<&str, Vec<&TensorEntry>> = BTreeMap::new();
    manifest.tensors.iter().for_each(|part| parts.entry(&part.name).or_default().push(part));
    let wanted: Vec<Wanted<'_>> = tensors
        .iter()
        .map(|tensor| Wanted::new(tensor, stage, parts.get(tensor.name.as_str()).map_or(&[], Vec::as_slice)))
        .collect();
    let files = TensorFiles::open(folder, wanted.iter().flat_map(|wanted| &wanted.parts)).map_err(damaged)?;
    let read = |wanted: &Wanted<'_>| wanted.read(&files, activity).map_err(damaged);
    let set = |wanted: &Wanted<'_>, values: Vec<f32>| {
        wanted.set(stage, &values)?;
        activity.advance();
        Ok(())
    };
    read_ahead(&wanted, |wanted| wanted.range.len(), read, set)?;
    stage.refresh_scales()?;
    let spikes = manifest.spikes.as_ref();
    let status = Status {
        applied: manifest.applied,
        skipped: manifest.skipped,
        spikes: spikes.map_or(0, |spikes| spikes.skipped),
        ..Status::default()
    };
    stage.optimizer().set_counters(device, status, spikes.map(|spikes| spikes.history()).as_ref())?;
    Ok(())
}

/// Bytes that are read at once, on all cores, on the way to the device.
const AT_ONCE: usize = 512 << 20;

/// Reads tensors on all cores, several at once: as many neighbours as have [`AT_ONCE`] bytes together, or one. The next
/// ones are read while `set` brings these to the device.
///
/// # Errors
/// The first of `read` or `set`.
pub(crate) fn read_ahead<T: Sync>(
    all: &[T],
    elements: impl Fn(&T) -> usize,
    read: impl Fn(&T) -> Result<Vec<f32>, UserError> + Sync,
    mut set: impl FnMut(&T, Vec<f32>) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let (mut batches, mut first, mut sum) = (Vec::new(), 0, 0);
    for (at, one) in all.iter().enumerate() {
        let more = elements(one) * size_of::<f32>();
        if at > first && sum + more > AT_ONCE {
            batches.push(&all[first..at]);
            (first, sum) = (at, 0);
        }
        sum += more;
    }
    batches.extend(Some(&all[first..]).filter(|rest| !rest.is_empty()));
    let (read, ahead) = (&read, &batches);
    let read_all = |several: &[T]| several.par_iter().map(read).collect::<Result<Vec<Vec<f32>>, UserError>>();
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(0);
        scope.spawn(move || ahead.iter().map(|several| read_all(several)).try_for_each(|values| sender.send(values)));
        for (several, values) in batches.iter().zip(receiver) {
            several.iter().zip(values?).try_for_each(|(one, values)| set(one, values))?;
        }
        Ok(())
    })
}

/// The elements of a tensor that this rank needs, and the parts of the checkpoint that have them.
struct Wanted<'l> {
    tensor: &'l LocalTensor,
    /// Among the elements of the stored parameter.
    range: Range<usize>,
    slabs: Vec<Slab>,
    parts: Vec<&'l TensorEntry>,
}

impl<'l> Wanted<'l> {
    fn new(tensor: &'l LocalTensor, stage: &Stage, parts: &[&'l TensorEntry]) -> Wanted<'l> {
        let range = match tensor.role {
            // Layers compute with the whole parameter, even if other ranks update parts of it.
            Role::Weights(index) => stage.params().needed(index),
            Role::OptimizerState => tensor.first..tensor.first + tensor.memory.elements(),
            Role::Magnitudes => 0..tensor.elements,
        };
        let slabs: Vec<Slab> = tensor.slabs.iter().flat_map(|slab| slab.within(range.clone())).collect();
        let parts = parts.iter().copied().filter(|part| slabs.iter().any(|slab| overlap(part, slab))).collect();
        Wanted { tensor, range, slabs, parts }
    }

    fn read(&self, files: &TensorFiles, activity: &Activity) -> Result<Vec<f32>, Damage> {
        if let ([part], [slab]) = (&self.parts[..], &self.slabs[..])
            && (&part.offset, &part.sizes) == (&slab.offset, &slab.sizes)
            && slab.elements() == self.range.len()
        {
            return files.read(part, activity);
        }
        let mut values = vec![0.0; self.range.len()];
        for part in &self.parts {
            let stored = files.read(part, activity)?;
            for slab in &self.slabs {
                let here = &mut values[slab.start - self.range.start..][..slab.elements()];
                copy_overlap((&stored, &part.offset, &part.sizes), (here, &slab.offset, &slab.sizes));
            }
        }
        Ok(values)
    }

    fn set(&self, stage: &Stage, values: &[f32]) -> device::Result<()> {
        let device = stage.device();
        match (self.tensor.role, self.tensor.memory) {
            (Role::Weights(index), _) => stage.params().set_needed(device, index, values),
            (_, SlabMemory::Values(memory)) if memory.dtype == DType::Bf16 && !values.is_empty() => {
                let rounded: Vec<bf16> = values.par_iter().map(|value| bf16::from_f32(*value)).collect();
                device.upload(&memory, &rounded)
            }
            (_, SlabMemory::Values(memory)) if !values.is_empty() => device.upload(&memory, values),
            _ => Ok(()),
        }
    }
}

/// The error for a damaged checkpoint that a run should start from.
pub(super) fn damaged(folder: &Path, damage: &Damage) -> UserError {
    UserError::new(
        format!("checkpoint {} is damaged: {damage}", folder.display()),
        "a run starts from a complete checkpoint",
        "name another in checkpoint.resume (`trainer checkpoint list DIR` checks them all)",
    )
}

/// Fails unless the checkpoint and the run have the same tensors. Of the tensors of other stages this rank knows the names
/// only.
fn check_fits(
    folder: &Path,
    manifest: &Manifest,
    tensors: &[LocalTensor],
    elsewhere: &[String],
) -> Result<(), UserError> {
    let misfit = |problem: String| {
        Err(UserError::new(
            format!("checkpoint {} does not fit: {problem}", folder.display()),
            "a run continues the model and optimizer that the checkpoint was written for",
            format!(
                "set [model] and [optimizer] as in {}, or another checkpoint.dir",
                folder.join(Single::Config.word()).display()
            ),
        ))
    };
    // The parts of a tensor have one shape and make it up: the manifest was checked.
    let theirs: BTreeMap<&str, &TensorEntry> = manifest.tensors.iter().map(|part| (part.name.as_str(), part)).collect();
    for tensor in tensors.iter().filter(|tensor| tensor.role != Role::Magnitudes) {
        let Some(part) = theirs.get(tensor.name.as_str()) else {
            return misfit(format!("it has no `{}`", tensor.name));
        };
        if part.shape != tensor.shape {
            let (theirs, ours) = (shape(&part.shape), shape(&tensor.shape));
            return misfit(format!("its `{}` is {theirs}, this run's is {ours}", tensor.name));
        }
    }
    let here = tensors.iter().map(|tensor| tensor.name.as_str());
    let known: std::collections::HashSet<&str> = here.chain(elsewhere.iter().map(String::as_str)).collect();
    match manifest.tensors.iter().find(|part| !known.contains(part.name.as_str()) && !is_optional(&part.name)) {
        Some(part) => misfit(format!("its `{}` of {} is not in this run", part.name, shape(&part.shape))),
        None => Ok(()),
    }
}

fn shape(sizes: &[usize]) -> String {
    format!("({})", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}

/// The files of a checkpoint's tensors, each opened once.
struct TensorFiles {
    open: BTreeMap<String, (File, FileHeader)>,
}

impl TensorFiles {
    /// Opens the files of the given parts.
    fn open<'p>(folder: &Path, parts: impl Iterator<Item = &'p &'p TensorEntry>) -> Result<TensorFiles, Damage> {
        let mut files = BTreeMap::new();
        for name in parts.map(|part| &part.file) {
            if !files.contains_key(name) {
                let file = open(folder, name)?;
                let header = FileHeader::read(&file).map_err(|problem| Damage::new(name, problem))?;
                files.insert(name.clone(), (file, header));
            }
        }
        Ok(TensorFiles { open: files })
    }

    /// The values of one part, from the part's file.
    fn read(&self, part: &TensorEntry, activity: &Activity) -> Result<Vec<f32>, Damage> {
        let name = &part.file;
        let (file, header) = &self.open[name];
        let lacks = || Damage::new(name, format!("has no f32 or bf16 `{}` of {}", part.name, shape(&part.sizes)));
        let tensor = header.tensors.get(part.key()).filter(|tensor| tensor.shape == part.sizes).ok_or_else(lacks)?;
        let first = header.data + tensor.data_offsets[0];
        let read = |bytes: &mut [u8]| {
            read_exact(file, first, bytes, activity).map_err(|error| Damage::unreadable(name, &error))
        };
        // As many as the file has: the header was checked.
        let elements = part.sizes.iter().product();
        match DataType::named(&tensor.dtype) {
            Some(DataType::F32) => {
                let mut values = vec![0.0; elements];
                read(bytemuck::cast_slice_mut(&mut values))?;
                Ok(values)
            }
            Some(DataType::Bf16) => {
                let mut bytes = vec![0; elements * DataType::Bf16.size()];
                read(&mut bytes)?;
                Ok(DataType::Bf16.decode(&bytes))
            }
            Some(DataType::F16) | None => Err(lacks()),
        }
    }
}

/// Whether a file's part of a tensor and a slab of the tensor have elements in common.
fn overlap(part: &TensorEntry, slab: &Slab) -> bool {
    (0..part.shape.len()).all(|axis| {
        let (a, b) = (part.offset[axis], slab.offset[axis]);
        a < b + slab.sizes[axis] && b < a + part.sizes[axis]
    })
}

/// A dense, row-major slab of a tensor: its values, its first element in the whole by axis, and its sizes.
pub(crate) type SlabValues<'b, V> = (V, &'b [usize], &'b [usize]);

/// Copies the elements that two slabs of one tensor have in common.
pub(crate) fn copy_overlap(from: SlabValues<'_, &[f32]>, to: SlabValues<'_, &mut [f32]>) {
    let ((from, from_offset, from_sizes), (to, to_offset, to_sizes)) = (from, to);
    let (Some((&start, rest)), Some((&to_start, to_rest))) = (from_offset.split_first(), to_offset.split_first())
    else {
        return to[..1].copy_from_slice(&from[..1]); // no axes: a scalar
    };
    let first = start.max(to_start);
    let end = (start + from_sizes[0]).min(to_start + to_sizes[0]);
    if rest.is_empty() {
        if first < end {
            to[first - to_start..end - to_start].copy_from_slice(&from[first - start..end - start]);
        }
        return;
    }
    let (row, to_row): (usize, usize) = (from_sizes[1..].iter().product(), to_sizes[1..].iter().product());
    for index in first..end {
        let source = &from[(index - start) * row..][..row];
        let target = &mut to[(index - to_start) * to_row..][..to_row];
        copy_overlap((source, rest, &from_sizes[1..]), (target, to_rest, &to_sizes[1..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slab of a `(5, 6, 4)` tensor. The tensor's values are their own numbers.
    fn slab(offset: &[usize], sizes: &[usize]) -> Vec<f32> {
        let mut values = Vec::new();
        for i in 0..sizes[0] {
            for j in 0..sizes[1] {
                for k in 0..sizes[2] {
                    values.push((((offset[0] + i) * 6 + offset[1] + j) * 4 + offset[2] + k) as f32);
                }
            }
        }
        values
    }

    #[test]
    fn a_tensor_divided_along_any_axis_is_read_back_divided_along_any_other() {
        let whole = [5, 6, 4];
        for (axis, cut) in [(0, 1), (0, 3), (1, 2), (1, 5), (2, 1), (2, 3)] {
            let mut parts = vec![(vec![0; 3], whole.to_vec()), (vec![0; 3], whole.to_vec())];
            parts[0].1[axis] = cut;
            parts[1].0[axis] = cut;
            parts[1].1[axis] = whole[axis] - cut;
            for (offset, sizes) in
                [([0, 0, 0], whole), ([2, 0, 0], [3, 6, 4]), ([0, 3, 0], [5, 2, 4]), ([1, 1, 1], [2, 4, 2])]
            {
                let mut values = vec![f32::NAN; sizes.iter().product()];
                for (at, extent) in &parts {
                    copy_overlap((&slab(at, extent), at, extent), (&mut values, &offset, &sizes));
                }
                assert_eq!(values, slab(&offset, &sizes), "cut {axis} at {cut}, read {offset:?} {sizes:?}");
            }
        }
    }
}
