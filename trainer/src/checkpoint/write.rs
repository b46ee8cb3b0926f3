//! Writing a checkpoint so that it is either there and complete, or not there.

use std::fs::File;
use std::io::{Error as IoError, Write};
use std::path::{Path, PathBuf};

use common::format::bytes;
use common::terminal::warn;
use data::Identities;
use device::Device;
use device::ops::Status;
use engine::params::Piece;
use engine::step::Stage;
use launch::watch::activity::Activity;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::folder::{remove, step_name, temporary};
use super::layout::{CONFIG, MODEL, OPTIMIZER, Stored, stored};
use super::manifest::{FileEntry, MANIFEST, Manifest, Progress, TensorEntry, hex};
use super::read::PIECE;
use super::writers::Writers;
use crate::error::SaveError;

/// Bytes of a file that may wait for the disk, so that the last wait for it is short too.
const UNSYNCED: u64 = 256 << 20;

/// Which run a checkpoint is of; rank 0 says it.
#[derive(Default)]
pub struct Origin {
    /// The resolved configuration.
    pub config: String,
    /// The name of the run.
    pub run: Option<String>,
    /// By what its data are known again.
    pub data: Option<Identities>,
}

/// What to do where there seems to be too little space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tight {
    /// Begin nothing: another checkpoint will follow.
    Refuse,
    /// Try nevertheless, for what this one holds is lost otherwise.
    Try,
}

/// What a rank has written, for the one that writes the manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry>,
}

/// Where a rank of a team leaves [`Written`] until the manifest has it.
fn note(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank:05}.json"))
}

/// What stops a file half way.
enum Failure {
    File(PathBuf, IoError),
    Device(device::Error),
}

/// Writes a stage between two steps to `dir/step-<steps>` and returns that path. All ranks of the run call it together.
///
/// All files go to a temporary folder and reach the disk, the manifest last; then the folder gets its name, at once. A
/// folder of that name that was there before (one found to be damaged) is replaced. Tensors are read from the device
/// and written one by one, by ranks that share layers side by side.
///
/// Where there is too little space, one rank first calls `make_room`, which may remove what is no longer needed in `dir`.
///
/// # Errors
/// See [`SaveError`].
pub fn save(
    dir: &Path,
    stage: &Stage,
    progress: Progress,
    origin: &Origin,
    team: &Writers,
    tight: Tight,
    make_room: &dyn Fn() -> std::io::Result<()>,
) -> Result<PathBuf, SaveError> {
    let device = stage.device();
    let path = dir.join(step_name(progress.step));
    let tensors = stored(stage);
    let files: Vec<TensorFile<'_>> =
        [MODEL, OPTIMIZER].into_iter().filter_map(|name| TensorFile::new(name, team, &tensors)).collect();
    let here = if team.writes { files.iter().map(TensorFile::bytes).sum() } else { 0 };
    let needed = (team.sum)(here) + origin.config.len() as u64;
    let stopped = |stop| match stop {
        Failure::File(file, error) => SaveError::Write { path: file, needed, free: free_space(dir).ok(), error },
        Failure::Device(error) => error.into(),
    };
    let folder = temporary(&path);
    let begin = || {
        std::fs::create_dir_all(dir).map_err(|error| stopped(Failure::File(dir.into(), error)))?;
        if free_space(dir).is_ok_and(|free| free < needed) {
            make_room().map_err(|error| stopped(Failure::File(dir.into(), error)))?;
        }
        match free_space(dir) {
            Ok(free) if free < needed && tight == Tight::Refuse => {
                return Err(SaveError::Space { path: path.clone(), needed, free });
            }
            Ok(free) if free < needed => warn(&format!(
                "WARNING: checkpoint {} needs {}, {} are free there. It is the last, so it is tried.",
                path.display(),
                bytes(needed as usize),
                bytes(free as usize)
            )),
            _ => {} // a file system that does not tell is tried
        }
        empty_folder(&folder).map_err(|error| stopped(Failure::File(folder.clone(), error)))
    };
    let end = |mut manifest: Manifest| -> Result<(), Failure> {
        for rank in 1..team.ranks {
            let Written { files, tensors } = take_note(&note(&folder, rank))?;
            manifest.files.extend(files);
            manifest.tensors.extend(tensors);
        }
        write_manifest(&folder, &origin.config, manifest, &team.activity)?;
        publish(&folder, &path)
    };
    let saved = || {
        team.agree(&path, if team.leads() { begin() } else { Ok(()) })?;
        let written = if team.writes { write_files(&folder, &files, device, &team.activity) } else { Ok(Vec::new()) };
        let noted = written.and_then(|files| {
            let tensors = tensor_entries(team, &tensors);
            let written = Written { files, tensors };
            if team.leads() || !team.writes { Ok(written) } else { leave_note(&folder, team.rank, written) }
        });
        let Written { files, tensors } = team.agree(&path, noted.map_err(stopped))?;
        let status: Status = bytemuck::pod_read_unaligned(&device.download::<u8>(&stage.optimizer().status)?);
        let mut manifest = Manifest::new(progress, status.applied, status.skipped);
        (manifest.files, manifest.tensors) = (files, tensors);
        manifest.products = device.export_choices();
        (manifest.run, manifest.data) = (origin.run.clone(), origin.data.clone());
        team.agree(&path, if team.leads() { end(manifest).map_err(stopped) } else { Ok(()) })
    };
    let result = saved();
    if result.is_err() && team.leads() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    result.map(|()| path)
}

/// What a rank of a team adds to the manifest's tensors.
fn tensor_entries(team: &Writers, tensors: &[Stored]) -> Vec<TensorEntry> {
    tensors
        .iter()
        .filter(|tensor| team.owns(tensor))
        .flat_map(|tensor| {
            tensor.held.iter().enumerate().map(|(number, piece)| TensorEntry {
                name: tensor.name.clone(),
                file: team.file(tensor.file),
                key: Some(key(tensor, number)).filter(|key| *key != tensor.name),
                shape: tensor.shape.clone(),
                offset: piece.offset.clone(),
                sizes: piece.sizes.clone(),
            })
        })
        .collect()
}

/// The name of a tensor's piece in its file.
fn key(tensor: &Stored, number: usize) -> String {
    if tensor.held.len() == 1 { tensor.name.clone() } else { format!("{}.{number}", tensor.name) }
}

/// Makes the folder anew.
fn empty_folder(folder: &Path) -> std::io::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir(folder)
}

/// Writes this rank's files, each synced.
fn write_files(
    folder: &Path,
    files: &[TensorFile<'_>],
    device: &Device,
    activity: &Activity,
) -> Result<Vec<FileEntry>, Failure> {
    files.iter().map(|file| file.write(folder, device, activity)).collect()
}

fn leave_note(folder: &Path, rank: usize, written: Written) -> Result<Written, Failure> {
    let path = note(folder, rank);
    let text = serde_json::to_vec(&written).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"));
    std::fs::write(&path, text).map_err(|error| Failure::File(path, error))?;
    Ok(written)
}

fn take_note(path: &Path) -> Result<Written, Failure> {
    let at = |error: IoError| Failure::File(path.into(), error);
    let written = serde_json::from_slice(&std::fs::read(path).map_err(at)?).map_err(|error| at(error.into()))?;
    std::fs::remove_file(path).map_err(at)?;
    Ok(written)
}

/// Writes the configuration and, last, the manifest, and syncs the folder.
fn write_manifest(folder: &Path, config: &str, mut manifest: Manifest, activity: &Activity) -> Result<(), Failure> {
    let mut output = Output::create(folder, CONFIG, activity)?;
    output.write(config.as_bytes())?;
    manifest.files.push(output.finish()?);
    let mut output = Output::create(folder, MANIFEST, activity)?;
    output.write(&manifest.seal())?;
    output.finish()?;
    sync_folder(folder).map_err(|error| Failure::File(folder.into(), error))
}

/// Gives the folder its name, and sees to it that the name survives a power cut.
fn publish(folder: &Path, path: &Path) -> Result<(), Failure> {
    let at = |error| Failure::File(path.into(), error);
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
    name: String,
    header: Vec<u8>,
    parts: Vec<(&'t Stored, &'t Piece)>,
}

impl<'t> TensorFile<'t> {
    /// This rank's file of that name; none if it has nothing of its own for it.
    fn new(name: &'static str, team: &Writers, all: &'t [Stored]) -> Option<TensorFile<'t>> {
        let tensors = all.iter().filter(|tensor| tensor.file == name && team.owns(tensor));
        let (mut end, mut infos, mut parts) = (0, Vec::new(), Vec::new());
        for tensor in tensors {
            for (number, piece) in tensor.held.iter().enumerate() {
                let start = end;
                end += tensor.values(piece).bytes();
                let info = TensorInfo { dtype: Dtype::F32, shape: piece.sizes.clone(), data_offsets: (start, end) };
                infos.push((key(tensor, number), info));
                parts.push((tensor, piece));
            }
        }
        // Readers of Hugging Face want to know which library's layout this is.
        let library = [("format".to_string(), "pt".to_string())].into();
        let metadata = Metadata::new(Some(library), infos)
            .unwrap_or_else(|error| unreachable!("offsets follow from shapes: {error}"));
        let text = serde_json::to_vec(&metadata).unwrap_or_else(|error| unreachable!("names are text: {error}"));
        let mut header = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
        header.extend(&text);
        header.resize(header.len().next_multiple_of(8), b' ');
        (!parts.is_empty()).then(|| TensorFile { name: team.file(name), header, parts })
    }

    fn bytes(&self) -> u64 {
        let data: usize = self.parts.iter().map(|(tensor, piece)| tensor.values(piece).bytes()).sum();
        (self.header.len() + data) as u64
    }

    fn write(&self, folder: &Path, device: &Device, activity: &Activity) -> Result<FileEntry, Failure> {
        let mut output = Output::create(folder, &self.name, activity)?;
        output.write(&self.header)?;
        for (tensor, piece) in &self.parts {
            let values = device.download::<f32>(&tensor.values(piece)).map_err(Failure::Device)?;
            output.write(bytemuck::cast_slice(&values))?;
        }
        output.finish()
    }
}

/// A file being written, and what the manifest will say of it.
struct Output<'a> {
    path: PathBuf,
    file: File,
    hash: Sha256,
    entry: FileEntry,
    activity: &'a Activity,
}

impl<'a> Output<'a> {
    fn create(folder: &Path, name: &str, activity: &'a Activity) -> Result<Output<'a>, Failure> {
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(|error| Failure::File(path.clone(), error))?;
        let entry = FileEntry { name: name.into(), bytes: 0, sha256: String::new() };
        Ok(Output { path, file, hash: Sha256::new(), entry, activity })
    }

    fn write(&mut self, content: &[u8]) -> Result<(), Failure> {
        for piece in content.chunks(PIECE) {
            let before = self.entry.bytes / UNSYNCED;
            self.entry.bytes += piece.len() as u64;
            let due = self.entry.bytes / UNSYNCED > before;
            let written = self.file.write_all(piece).and_then(|()| if due { self.file.sync_data() } else { Ok(()) });
            written.map_err(|error| Failure::File(self.path.clone(), error))?;
            self.hash.update(piece);
            self.activity.advance();
        }
        Ok(())
    }

    /// Waits until the disk has it.
    fn finish(self) -> Result<FileEntry, Failure> {
        self.file.sync_all().map_err(|error| Failure::File(self.path, error))?;
        Ok(FileEntry { sha256: hex(&self.hash.finalize()), ..self.entry })
    }
}
