//! Writing a checkpoint so that it is either there and complete, or not there.

use std::fs::File;
use std::io::{Error as IoError, Write};
use std::path::{Path, PathBuf};

use device::Device;
use device::ops::Status;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};

use super::folder::{remove, step_name, temporary};
use super::layout::{CONFIG, MODEL, OPTIMIZER, Stored, stored};
use super::manifest::{FileEntry, MANIFEST, Manifest, Progress, TensorEntry, hex};
use crate::metrics::bytes;
use crate::step::Stage;

/// Why a checkpoint was not written. Earlier ones are as they were.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// There is not enough space; nothing was begun.
    #[error(
        "checkpoint {} was not written: it needs {}, {} are free there. Earlier checkpoints are untouched. \
         Fix: free space, lower checkpoint.keep, or set another checkpoint.dir",
        path.display(), bytes(*needed as usize), bytes(*free as usize)
    )]
    Space {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Bytes of all its files.
        needed: u64,
        /// Bytes free in `checkpoint.dir`.
        free: u64,
    },
    /// A file or folder could not be written; what was begun is removed.
    #[error(
        "checkpoint file {} was not written: {error}. The checkpoint needs {}, {} are free there. \
         Earlier checkpoints are untouched. Fix: check space, quota and permissions, or set another checkpoint.dir",
        path.display(), bytes(*needed as usize), free.map_or("unknown".into(), |free| bytes(free as usize))
    )]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of all files of the checkpoint.
        needed: u64,
        /// Bytes free in `checkpoint.dir`, where the system tells.
        free: Option<u64>,
        /// What the operating system said.
        error: IoError,
    },
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] device::Error),
}

/// What stops a file half way.
enum Stop {
    File(PathBuf, IoError),
    Device(device::Error),
}

/// Writes a stage between two steps to `dir/step-<steps>` and returns that path.
///
/// All files go to a temporary folder and reach the disk, the manifest last; then the folder gets its name, at once. A
/// folder of that name that was there before (one found to be damaged) is replaced. Tensors are read from the device
/// and written one by one.
///
/// # Errors
/// See [`SaveError`].
pub fn save(
    dir: &Path,
    device: &Device,
    stage: &Stage,
    progress: Progress,
    config: &str,
) -> Result<PathBuf, SaveError> {
    let path = dir.join(step_name(progress.step));
    let tensors = stored(stage);
    let files: Vec<TensorFile<'_>> =
        [MODEL, OPTIMIZER].into_iter().filter_map(|name| TensorFile::new(name, &tensors)).collect();
    let needed = files.iter().map(TensorFile::bytes).sum::<u64>() + config.len() as u64;
    let fail = |file: PathBuf, error| SaveError::Write { path: file, needed, free: free_space(dir).ok(), error };
    std::fs::create_dir_all(dir).map_err(|error| fail(dir.into(), error))?;
    match free_space(dir) {
        Ok(free) if free < needed => return Err(SaveError::Space { path, needed, free }),
        // A file system that does not tell is tried.
        _ => {}
    }
    let status: Status = bytemuck::pod_read_unaligned(&device.download::<u8>(&stage.optimizer().status)?);
    let mut manifest = Manifest::new(progress, status.applied, status.skipped);
    manifest.tensors = tensors.iter().map(entry).collect();
    let folder = temporary(&path);
    let written = write_folder(&folder, &files, device, config, manifest).and_then(|()| publish(&folder, &path));
    match written {
        Ok(()) => Ok(path),
        Err(stop) => {
            let error = match stop {
                Stop::File(file, error) => fail(file, error),
                Stop::Device(error) => error.into(),
            };
            let _ = std::fs::remove_dir_all(&folder);
            Err(error)
        }
    }
}

fn entry(tensor: &Stored) -> TensorEntry {
    TensorEntry {
        name: tensor.name.clone(),
        file: tensor.file.into(),
        shape: tensor.shape.clone(),
        offset: tensor.offset.clone(),
        sizes: tensor.sizes.clone(),
    }
}

/// Writes all files, each synced, the manifest last, and syncs the folder.
fn write_folder(
    folder: &Path,
    files: &[TensorFile<'_>],
    device: &Device,
    config: &str,
    mut manifest: Manifest,
) -> Result<(), Stop> {
    let at = |error| Stop::File(folder.into(), error);
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(at)?;
    }
    std::fs::create_dir(folder).map_err(at)?;
    for file in files {
        manifest.files.push(file.write(folder, device)?);
    }
    let mut output = Output::create(folder, CONFIG)?;
    output.write(config.as_bytes())?;
    manifest.files.push(output.finish()?);
    let mut output = Output::create(folder, MANIFEST)?;
    output.write(&manifest.seal())?;
    output.finish()?;
    sync_folder(folder).map_err(at)
}

/// Gives the folder its name, and sees to it that the name survives a power cut.
fn publish(folder: &Path, path: &Path) -> Result<(), Stop> {
    let at = |error| Stop::File(path.into(), error);
    if path.exists() {
        remove(path).map_err(at)?;
    }
    std::fs::rename(folder, path).map_err(at)?;
    path.parent().map_or(Ok(()), sync_folder).map_err(at)
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Bytes that this user may still write where `folder` lies.
fn free_space(folder: &Path) -> std::io::Result<u64> {
    let system = rustix::fs::statvfs(folder)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// A safetensors file to be written: its header, and what follows it.
struct TensorFile<'t> {
    name: &'static str,
    header: Vec<u8>,
    tensors: Vec<&'t Stored>,
}

impl<'t> TensorFile<'t> {
    /// The file of that name; none if no tensor belongs to it.
    fn new(name: &'static str, all: &'t [Stored]) -> Option<TensorFile<'t>> {
        let tensors: Vec<&Stored> = all.iter().filter(|tensor| tensor.file == name).collect();
        let mut end = 0;
        let infos = tensors.iter().map(|tensor| {
            let start = end;
            end += tensor.values().bytes();
            let info = TensorInfo { dtype: Dtype::F32, shape: tensor.sizes.clone(), data_offsets: (start, end) };
            (tensor.name.clone(), info)
        });
        // Readers of Hugging Face want to know which library's layout this is.
        let library = [("format".to_string(), "pt".to_string())].into();
        let metadata = Metadata::new(Some(library), infos.collect())
            .unwrap_or_else(|error| unreachable!("offsets follow from shapes: {error}"));
        let text = serde_json::to_vec(&metadata).unwrap_or_else(|error| unreachable!("names are text: {error}"));
        let mut header = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
        header.extend(&text);
        header.resize(header.len().next_multiple_of(8), b' ');
        (!tensors.is_empty()).then_some(TensorFile { name, header, tensors })
    }

    fn bytes(&self) -> u64 {
        let data: usize = self.tensors.iter().map(|tensor| tensor.values().bytes()).sum();
        (self.header.len() + data) as u64
    }

    fn write(&self, folder: &Path, device: &Device) -> Result<FileEntry, Stop> {
        let mut output = Output::create(folder, self.name)?;
        output.write(&self.header)?;
        for tensor in &self.tensors {
            let values = device.download::<f32>(&tensor.values()).map_err(Stop::Device)?;
            output.write(bytemuck::cast_slice(&values))?;
        }
        output.finish()
    }
}

/// A file being written, and what the manifest will say of it.
struct Output {
    path: PathBuf,
    file: File,
    hash: Sha256,
    entry: FileEntry,
}

impl Output {
    fn create(folder: &Path, name: &str) -> Result<Output, Stop> {
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(|error| Stop::File(path.clone(), error))?;
        let entry = FileEntry { name: name.into(), bytes: 0, sha256: String::new() };
        Ok(Output { path, file, hash: Sha256::new(), entry })
    }

    fn write(&mut self, content: &[u8]) -> Result<(), Stop> {
        self.file.write_all(content).map_err(|error| Stop::File(self.path.clone(), error))?;
        self.hash.update(content);
        self.entry.bytes += content.len() as u64;
        Ok(())
    }

    /// Waits until the disk has it.
    fn finish(self) -> Result<FileEntry, Stop> {
        self.file.sync_all().map_err(|error| Stop::File(self.path, error))?;
        Ok(FileEntry { sha256: hex(&self.hash.finalize()), ..self.entry })
    }
}
