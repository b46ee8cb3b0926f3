//! Writing a checkpoint, so that it is complete or not there.

use std::fs::File;
use std::io::Error as IoError;
use std::path::{Path, PathBuf};

use common::Choice;
use common::files::{open_unlinked, read_at_most};
use common::format::bytes;
use common::terminal::warn;
use data::{CopiedFile, Identities};
use device::Device;
use engine::step::Stage;
use launch::watch::activity::Activity;
use serde::{Deserialize, Serialize};

use super::file::{CheckpointFile, KeptFile, Single, Tensors};
use super::folder::{remove, remove_files, temporary};
use super::layout::{LocalTensor, local_tensors};
use super::manifest::{FileEntry, LARGEST, Manifest, Progress, SpikeEntry, TensorEntry};
use super::step_name::step_name;
use super::tensor_file::{Output, TensorFile, WriteError, tensor_entries};
use super::writers::Writers;
use crate::error::SaveError;

/// Which run a checkpoint belongs to. Only rank 0's is used.
#[derive(Default)]
pub struct Origin {
    /// The resolved configuration.
    pub config: String,
    /// The name of the run.
    pub run: Option<String>,
    /// The identities of its data.
    pub data: Option<Identities>,
    /// The files that hold the tokenizer of its data and its chat template, and their contents.
    pub copies: Vec<(CopiedFile, Vec<u8>)>,
    /// The files of the Hugging Face model that it began with, and their contents.
    pub source: Vec<KeptFile>,
}

impl Origin {
    /// The files that say it, and their contents, without the manifest.
    fn files(&self) -> impl Iterator<Item = (CheckpointFile, &[u8])> {
        let copies = self.copies.iter().map(|(file, content)| (CheckpointFile::Copied(*file), &content[..]));
        let source = self.source.iter().map(|(file, content)| (CheckpointFile::Source(*file), &content[..]));
        [(CheckpointFile::Single(Single::Config), self.config.as_bytes())].into_iter().chain(copies).chain(source)
    }

    /// Bytes of these files.
    fn bytes(&self) -> u64 {
        self.files().map(|(_, content)| content.len() as u64).sum()
    }
}

/// When a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// At an interval. With too little space nothing is begun: a later checkpoint may fit.
    Interval,
    /// At the end of the run. It is tried even with too little space: its progress would be lost otherwise.
    End,
}

/// A checkpoint to be written.
pub struct SaveRequest<'s> {
    /// The folder of the run's checkpoints.
    pub dir: &'s Path,
    /// Where the run stands.
    pub progress: Progress,
    /// The run.
    pub origin: &'s Origin,
    /// The run's lines of metrics that could not be written elsewhere. Only the rank that leads writes them.
    pub metrics: &'s [u8],
    /// Who writes what.
    pub writers: &'s Writers,
    /// When it is written.
    pub occasion: Occasion,
    /// Where there is too little space, one rank calls this first. It may remove what is no longer needed in `dir`.
    pub make_room: &'s dyn Fn() -> std::io::Result<()>,
}

/// Writes a stage between two steps to `dir/step-<steps>` and returns that path. All ranks of the run call it together.
///
/// All files are written to a temporary folder and synced, the manifest last. Then the folder is renamed, which is atomic.
/// A folder of that name that was there before, found to be damaged, is replaced. Tensors are read from the device and
/// written one by one. Ranks write side by side.
///
/// # Errors
/// See [`SaveError`].
pub fn save(stage: &Stage, request: &SaveRequest<'_>) -> Result<PathBuf, SaveError> {
    let writers = request.writers;
    let tensors = local_tensors(stage);
    let files = Tensors::ALL.iter().filter_map(|of| TensorFile::new(*of, writers, &tensors));
    let files: Vec<TensorFile<'_>> = files.collect();
    let here = if writers.writes { files.iter().map(TensorFile::bytes).sum() } else { 0 };
    let needed = (writers.sum)(here + request.metrics.len() as u64) + request.origin.bytes();
    let path = request.dir.join(step_name(request.progress.step));
    let saving = Saving { request, folder: temporary(&path), path, needed };
    let result = saving.save(stage, &tensors, &files);
    if result.is_err() && writers.leads() {
        let _ = remove_files(&saving.folder);
    }
    result.map(|()| saving.path)
}

/// A checkpoint on its way to the disk.
struct Saving<'s> {
    request: &'s SaveRequest<'s>,
    /// Where the files go first.
    folder: PathBuf,
    /// The folder's name once it is complete.
    path: PathBuf,
    /// Bytes of all files.
    needed: u64,
}

/// What a rank has written, for the manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry>,
}

impl Saving<'_> {
    /// One rank begins, all write, and one publishes. All agree on the result of each of the three.
    fn save(&self, stage: &Stage, tensors: &[LocalTensor], files: &[TensorFile<'_>]) -> Result<(), SaveError> {
        let (writers, device) = (self.request.writers, stage.device());
        writers.agree(&self.path, if writers.leads() { self.begin() } else { Ok(()) })?;
        let written = self.write(tensors, files, device).map_err(|error| self.error(error));
        let Written { files, tensors } = writers.agree(&self.path, written)?;
        let (status, history) = stage.optimizer().counters(device)?;
        let origin = self.request.origin;
        let manifest = Manifest {
            files,
            tensors,
            products: device.export_choices(),
            run: origin.run.clone(),
            data: origin.data.clone(),
            spikes: history.map(|history| SpikeEntry::new(status.spikes, &history)),
            ..Manifest::new(self.request.progress, status.applied, status.skipped)
        };
        let ended = if writers.leads() { self.publish(manifest) } else { Ok(()) };
        writers.agree(&self.path, ended.map_err(|error| self.error(error)))
    }

    /// Makes the temporary folder, if there is space for the checkpoint.
    fn begin(&self) -> Result<(), SaveError> {
        let dir = self.request.dir;
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| self.error(WriteError::File(path, error))
        };
        std::fs::create_dir_all(dir).map_err(failed(dir))?;
        if free_space(dir).is_ok_and(|free| free < self.needed) {
            (self.request.make_room)().map_err(failed(dir))?;
        }
        // A file system that does not tell its free space is tried.
        if let Ok(free) = free_space(dir)
            && free < self.needed
        {
            match self.request.occasion {
                Occasion::Interval => {
                    return Err(SaveError::Space { path: self.path.clone(), needed: self.needed, free });
                }
                Occasion::End => warn(&format!(
                    "WARNING: checkpoint {} needs {}, {} are free there. It is the last checkpoint, so the trainer tries to write it.",
                    self.path.display(),
                    bytes(self.needed as usize),
                    bytes(free as usize)
                )),
            }
        }
        empty_folder(&self.folder).map_err(failed(&self.folder))
    }

    /// Writes this rank's files, each synced. A rank that does not lead leaves a note of them.
    fn write(&self, tensors: &[LocalTensor], files: &[TensorFile<'_>], device: &Device) -> Result<Written, WriteError> {
        let writers = self.request.writers;
        if !writers.writes {
            return Ok(Written { files: Vec::new(), tensors: Vec::new() });
        }
        let files = files.iter().map(|file| file.write(&self.folder, device, &writers.activity));
        let written = Written { files: files.collect::<Result<_, _>>()?, tensors: tensor_entries(writers, tensors) };
        if !writers.leads() {
            leave_note(&self.note(writers.rank), &written)?;
        }
        Ok(written)
    }

    /// Adds what the other ranks wrote to the manifest, writes it, and gives the folder its name.
    fn publish(&self, mut manifest: Manifest) -> Result<(), WriteError> {
        let Writers { ranks, activity, .. } = self.request.writers;
        for rank in 1..*ranks {
            let Written { files, tensors } = take_note(&self.note(rank))?;
            manifest.files.extend(files);
            manifest.tensors.extend(tensors);
        }
        let SaveRequest { origin, metrics, .. } = self.request;
        let metrics = (!metrics.is_empty()).then_some((CheckpointFile::Single(Single::Metrics), *metrics));
        write_rest(&self.folder, origin.files().chain(metrics), manifest, activity)?;
        rename(&self.folder, &self.path).map_err(|error| WriteError::File(self.path.clone(), error))
    }

    /// Where a rank leaves [`Written`] for the one that leads.
    fn note(&self, rank: usize) -> PathBuf {
        self.folder.join(CheckpointFile::Note(rank).name())
    }

    fn error(&self, error: WriteError) -> SaveError {
        match error {
            WriteError::File(path, error) => {
                SaveError::Write { path, needed: self.needed, free: free_space(self.request.dir).ok(), error }
            }
            WriteError::Device(error) => error.into(),
        }
    }
}

/// Makes the folder, empty. Files in it that no checkpoint has stay, and are an error.
fn empty_folder(folder: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(folder).is_ok() {
        remove_files(folder)?;
    }
    std::fs::create_dir(folder)
}

fn leave_note(path: &Path, written: &Written) -> Result<(), WriteError> {
    let text = serde_json::to_vec(written).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"));
    std::fs::write(path, text).map_err(|error| WriteError::File(path.into(), error))
}

fn take_note(path: &Path) -> Result<Written, WriteError> {
    let at = |error: IoError| WriteError::File(path.into(), error);
    let text = open_unlinked(path).and_then(|file| read_at_most(file, LARGEST)).map_err(at)?;
    let written = serde_json::from_slice(&text).map_err(|error| at(error.into()))?;
    std::fs::remove_file(path).map_err(at)?;
    Ok(written)
}

/// Writes these files with their contents, then the manifest, and syncs the folder.
fn write_rest<'f>(
    folder: &Path,
    files: impl Iterator<Item = (CheckpointFile, &'f [u8])>,
    mut manifest: Manifest,
    activity: &Activity,
) -> Result<(), WriteError> {
    for (file, content) in files {
        let mut output = Output::create(folder, file, activity)?;
        output.write(content)?;
        manifest.files.push(output.finish()?);
    }
    let mut output = Output::create(folder, CheckpointFile::Single(Single::Manifest), activity)?;
    output.write(&manifest.seal())?;
    output.finish()?;
    sync_folder(folder).map_err(|error| WriteError::File(folder.into(), error))
}

/// Gives a folder its name, and syncs it so that the name survives a power cut.
fn rename(folder: &Path, path: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        remove(path)?;
    }
    std::fs::rename(folder, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Bytes that this user may still write to the file system of `folder`.
fn free_space(folder: &Path) -> std::io::Result<u64> {
    let system = rustix::fs::statvfs(folder)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}
