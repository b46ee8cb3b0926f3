//! Writes a checkpoint whole or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Choice;
use common::format::bytes;
use data::{CopiedFile, Identities};
use device::{Staging, Tensor};
use engine::step::Stage;

use super::file::{CheckpointFile, KeptFile, Single, Tensors};
use super::folder::{empty_folder, temporary};
use super::layout::{LocalTensor, local_tensors};
use super::manifest::{Manifest, Progress, SpikeEntry, TensorEntry};
use super::output::WriteError;
use super::step_name::step_name;
use super::tensor_file::{TensorFile, tensor_entries};
use super::unfinished::{Target, UnfinishedSave};
use super::validated::{Validated, ValidationEntry};
use super::writers::Writers;
use crate::error::SaveError;
use crate::told::tell;

/// The run that a checkpoint belongs to. Only rank 0's is used.
#[derive(Clone, Default)]
pub struct Origin {
    /// The resolved configuration.
    pub config: String,
    /// The name of the run.
    pub run: Option<String>,
    /// The identities of the run's data.
    pub data: Option<Identities>,
    /// The files with the tokenizer and the chat template of the run's data, and the files' contents.
    pub copies: Vec<(CopiedFile, Vec<u8>)>,
    /// The files of the Hugging Face model that the run began with, and the files' contents.
    pub source: Vec<KeptFile>,
}

impl Origin {
    /// The files of the origin, and the files' contents, without the manifest.
    pub(super) fn files(&self) -> impl Iterator<Item = (CheckpointFile, &[u8])> {
        let copies = self.copies.iter().map(|(file, content)| (CheckpointFile::Copied(*file), &content[..]));
        let source = self.source.iter().map(|(file, content)| (CheckpointFile::Source(*file), &content[..]));
        [(CheckpointFile::Single(Single::Config), self.config.as_bytes())].into_iter().chain(copies).chain(source)
    }

    /// Bytes of the origin's files.
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
    /// The steps and samples done.
    pub progress: Progress,
    /// The validation losses so far.
    pub validated: Validated,
    /// The run.
    pub origin: &'s Arc<Origin>,
    /// The run's lines of metrics that could not be written elsewhere. Only the rank that leads writes them.
    pub metrics: &'s [u8],
    /// The ranks that write, and the share of each.
    pub writers: &'s Writers,
    /// When the checkpoint is written.
    pub occasion: Occasion,
    /// The memory that the state is copied to, so that training may go on while the copy is written. `None`: training waits.
    pub memory: Option<&'s Staging>,
    /// If there is too little space, one rank calls this first. It may remove folders in `dir` that are no longer
    /// needed.
    pub make_room: &'s dyn Fn() -> std::io::Result<()>,
}

/// Writes a stage between two steps to `dir/step-<steps>` and returns that path. All ranks of the run call it together.
///
/// # Errors
/// See [`SaveError`].
pub fn save(stage: &mut Stage, request: &SaveRequest<'_>) -> Result<PathBuf, SaveError> {
    let path = request.dir.join(step_name(request.progress.step));
    begin_save(stage, request)?.finish(request.writers).map(|_| path)
}

/// Begins to write a stage between two steps to `dir/step-<steps>`. The stage may train on when this returns. All ranks of
/// the run call it together.
///
/// All files are written to a temporary folder and synced, the manifest last. Then the folder is renamed, atomically. A
/// folder of that name that was there before, found to be damaged, is replaced. Ranks write side by side, and each of a
/// rank's files has a thread. A copy of the state is under way beside the next step.
///
/// # Errors
/// See [`SaveError`].
pub(super) fn begin_save(stage: &mut Stage, request: &SaveRequest<'_>) -> Result<UnfinishedSave, SaveError> {
    let writers = request.writers;
    let tensors = local_tensors(stage);
    let files = tensor_files(&tensors, writers);
    let here: u64 = files.iter().map(TensorFile::bytes).sum();
    let needed = (writers.sum)(here + request.metrics.len() as u64) + request.origin.bytes();
    let path = request.dir.join(step_name(request.progress.step));
    let target = Target { dir: request.dir.into(), folder: temporary(&path), path, needed };
    writers.agree(&target.path, if writers.leads() { begin(request, &target) } else { Ok(()) })?;

    let mut save = UnfinishedSave::new(target, writers.leads());
    let entries = tensor_entries(writers, &tensors);
    // The counters are read before the copy begins: to read them, the host waits for all work of the device.
    let begun = manifest(stage, request).map_err(SaveError::from).and_then(|manifest| {
        if writers.writes {
            write_files(stage, &mut save, &files, entries, request)?;
        }
        if !writers.leads() {
            return Ok(());
        }
        save.publish(manifest, request.origin.clone(), request.metrics.to_vec(), writers)
    });
    match writers.agree(save.path(), begun) {
        Ok(()) => Ok(save),
        Err(error) => {
            save.abandon();
            Err(error)
        }
    }
}

/// Begins to write this rank's files: from a copy of the state, or while the state is read.
fn write_files(
    stage: &mut Stage,
    save: &mut UnfinishedSave,
    files: &[TensorFile<'_>],
    entries: Vec<TensorEntry>,
    request: &SaveRequest<'_>,
) -> Result<(), SaveError> {
    if let Some(memory) = request.memory {
        let tensors: Vec<Tensor> = files.iter().flat_map(TensorFile::memory).collect();
        let copy = stage.copy_out(&tensors, memory)?;
        let contents = files.iter().map(|file| file.copied(copy.clone())).collect();
        return save.write(contents, entries, request.writers);
    }
    let (senders, contents): (Vec<_>, Vec<_>) = files.iter().map(TensorFile::channel).unzip();
    save.write(contents, entries, request.writers)?;
    files.iter().zip(senders).try_for_each(|(file, values)| file.read(stage.device(), &values))?;
    Ok(())
}

/// The sizes of the blocks of host memory that a copy of this rank's files needs.
pub(super) fn copy_blocks(stage: &Stage, writers: &Writers) -> Vec<usize> {
    let tensors = local_tensors(stage);
    let memory: Vec<Tensor> = tensor_files(&tensors, writers).iter().flat_map(TensorFile::memory).collect();
    device::copy_blocks(&memory)
}

/// Bytes of this rank's files, and of a copy of the files' contents.
pub(crate) fn rank_bytes(stage: &Stage, writers: &Writers) -> u64 {
    tensor_files(&local_tensors(stage), writers).iter().map(TensorFile::bytes).sum()
}

/// This rank's files.
fn tensor_files<'t>(tensors: &'t [LocalTensor], writers: &Writers) -> Vec<TensorFile<'t>> {
    let files = Tensors::ALL.iter().filter(|_| writers.writes);
    files.filter_map(|of| TensorFile::new(*of, writers, tensors)).collect()
}

/// The manifest, without files and tensors.
fn manifest(stage: &Stage, request: &SaveRequest<'_>) -> device::Result<Manifest> {
    let device = stage.device();
    let (status, history) = stage.optimizer().counters(device)?;
    Ok(Manifest {
        products: device.export_choices(),
        run: request.origin.run.clone(),
        data: request.origin.data.clone(),
        validation: ValidationEntry::new(&request.validated),
        spikes: history.map(|history| SpikeEntry::new(status.spikes, &history)),
        ..Manifest::new(request.progress, status.applied, status.skipped)
    })
}

/// Makes the temporary folder, if there is space for the checkpoint.
fn begin(request: &SaveRequest<'_>, target: &Target) -> Result<(), SaveError> {
    let dir = request.dir;
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error| target.error(WriteError(path, error))
    };
    std::fs::create_dir_all(dir).map_err(failed(dir))?;
    if free_space(dir).is_ok_and(|free| free < target.needed) {
        (request.make_room)().map_err(failed(dir))?;
    }
    // A file system that does not tell its free space is tried.
    if let Ok(free) = free_space(dir)
        && free < target.needed
    {
        match request.occasion {
            Occasion::Interval => {
                return Err(SaveError::Space { path: target.path.clone(), needed: target.needed, free });
            }
            Occasion::End => tell(&format!(
                "WARNING: checkpoint {} needs {}, {} are free there. It is the last checkpoint, so the trainer tries to write it.",
                target.path.display(),
                bytes(target.needed as usize),
                bytes(free as usize)
            )),
        }
    }
    empty_folder(&target.folder).map_err(failed(&target.folder))
}

/// Bytes that this user may still write to the file system of `folder`.
pub(super) fn free_space(folder: &Path) -> std::io::Result<u64> {
    let system = rustix::fs::statvfs(folder)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}
