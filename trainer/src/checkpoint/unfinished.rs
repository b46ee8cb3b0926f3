//! A checkpoint on its way to the disk, written by threads while the run goes on.

use std::fs::File;
use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{JoinHandle, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use common::files::{open_unlinked, read_at_most};
use launch::watch::activity::Activity;
use serde::{Deserialize, Serialize};

use super::file::{CheckpointFile, Single};
use super::folder::{remove, remove_files};
use super::manifest::{FileEntry, LARGEST, Manifest, TensorEntry};
use super::tensor_file::{FileContent, Output, WriteError};
use super::write::{Origin, free_space};
use super::writers::Writers;
use crate::error::SaveError;

/// The interval at which the rank that leads looks for the notes of others.
const POLL: Duration = Duration::from_millis(20);

/// How long a rank waits after a fault for the checkpoint that is being written.
const PATIENCE: Duration = Duration::from_secs(10);

/// The folders of a checkpoint, and its size.
pub(super) struct Target {
    /// The folder of the run's checkpoints.
    pub(super) dir: PathBuf,
    /// The temporary folder of the files.
    pub(super) folder: PathBuf,
    /// The folder's name once it is complete.
    pub(super) path: PathBuf,
    /// Bytes of all files.
    pub(super) needed: u64,
}

impl Target {
    pub(super) fn error(&self, error: WriteError) -> SaveError {
        let WriteError(path, error) = error;
        SaveError::Write { path, needed: self.needed, free: free_space(&self.dir).ok(), error }
    }

    /// The file in which a rank leaves [`Written`] for the rank that leads.
    fn note(&self, rank: usize) -> PathBuf {
        self.folder.join(CheckpointFile::Note(rank).name())
    }
}

/// A rank's entries for the manifest.
#[derive(Serialize, Deserialize)]
struct Written {
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry>,
}

/// What all ranks agreed about their files.
#[derive(Clone, Default)]
struct Agreed(Arc<AtomicU8>);

impl Agreed {
    /// Every rank has written its files and left its note.
    const WRITTEN: u8 = 1;
    /// A rank failed, or the run ends with a fault.
    const ABANDONED: u8 = 2;

    fn set(&self, value: u8) {
        self.0.store(value, Ordering::Release);
    }

    fn is(&self, value: u8) -> bool {
        self.0.load(Ordering::Acquire) == value
    }
}

type Task = JoinHandle<Result<(), WriteError>>;

/// A checkpoint on its way to the disk. A thread of each rank writes the rank's files and leaves a note. One of the rank
/// that leads waits for all notes, and publishes the checkpoint: no rank waits for another one's disk meanwhile.
pub(super) struct UnfinishedSave {
    target: Arc<Target>,
    agreed: Agreed,
    writer: Option<Task>,
    /// Of the rank that leads.
    publisher: Option<Task>,
    /// Whether this rank removes the files of a checkpoint that failed.
    leads: bool,
    /// Whether a failure here was already returned by [`UnfinishedSave::news`].
    has_failed: bool,
    is_published: bool,
}

/// What has become of a checkpoint since it was last asked.
pub(super) enum News {
    /// Nothing is known yet.
    None,
    /// It is complete. Only the rank that leads hears it.
    Published(PathBuf),
    /// This rank could not do its part.
    Failed(SaveError),
}

impl UnfinishedSave {
    pub(super) fn new(target: Target, leads: bool) -> UnfinishedSave {
        let (target, agreed) = (Arc::new(target), Agreed::default());
        UnfinishedSave { target, agreed, writer: None, publisher: None, leads, has_failed: false, is_published: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.target.path
    }

    /// Starts to write this rank's files.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn write(
        &mut self,
        files: Vec<FileContent>,
        tensors: Vec<TensorEntry>,
        writers: &Writers,
    ) -> Result<(), SaveError> {
        let (target, activity, rank) = (self.target.clone(), writers.activity.clone(), writers.rank);
        self.writer = Some(self.task(move || {
            let paths: Vec<PathBuf> = files.iter().map(|file| file.path(&target.folder)).collect();
            let files = side_by_side(files, &target.folder, &activity);
            let written = files.and_then(|files| leave_note(&target.note(rank), &Written { files, tensors }));
            if written.is_err() {
                // The disk may be full, and the run goes on.
                paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
            }
            written
        })?);
        Ok(())
    }

    /// Starts to wait for the files of all ranks, and then to publish the checkpoint.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn publish(
        &mut self,
        manifest: Manifest,
        origin: Arc<Origin>,
        metrics: Vec<u8>,
        writers: &Writers,
    ) -> Result<(), SaveError> {
        let (target, agreed) = (self.target.clone(), self.agreed.clone());
        let (activity, ranks) = (writers.activity.clone(), writers.ranks);
        self.publisher = Some(self.task(move || {
            let mut manifest = manifest;
            for rank in 0..ranks {
                let Written { files, tensors } = await_note(&target.note(rank), &agreed)?;
                manifest.files.extend(files);
                manifest.tensors.extend(tensors);
            }
            let metrics = (!metrics.is_empty()).then_some((CheckpointFile::Single(Single::Metrics), &metrics[..]));
            write_rest(&target.folder, origin.files().chain(metrics), manifest, &activity)?;
            rename(&target.folder, &target.path).map_err(|error| WriteError(target.path.clone(), error))
        })?);
        Ok(())
    }

    fn task(&self, work: impl FnOnce() -> Result<(), WriteError> + Send + 'static) -> Result<Task, SaveError> {
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        thread.map_err(|error| self.target.error(WriteError(self.target.path.clone(), error)))
    }

    /// Whether [`UnfinishedSave::news`] returned that it is complete.
    pub(super) fn is_published(&self) -> bool {
        self.is_published
    }

    /// What is new. It does not wait.
    pub(super) fn news(&mut self) -> News {
        if let Some(Err(error)) = ended(&mut self.writer) {
            return self.failed(error);
        }
        match ended(&mut self.publisher) {
            None => News::None,
            Some(Ok(())) => {
                self.is_published = true;
                News::Published(self.target.path.clone())
            }
            Some(Err(error)) => self.failed(error),
        }
    }

    fn failed(&mut self, error: WriteError) -> News {
        self.has_failed = true;
        News::Failed(self.target.error(error))
    }

    /// Waits until the checkpoint is on disk, and returns its path. All ranks call it together.
    ///
    /// # Errors
    /// See [`SaveError`]. A failure that [`UnfinishedSave::news`] returned is now as another rank's.
    pub(super) fn finish(mut self, writers: &Writers) -> Result<PathBuf, SaveError> {
        let path = self.target.path.clone();
        let written = self.result(|save| save.writer.take());
        if let Err(error) = writers.agree(&path, written) {
            self.abandon();
            return Err(error);
        }
        self.agreed.set(Agreed::WRITTEN);
        let published = self.result(|save| save.publisher.take());
        if published.is_err() {
            self.remove();
        }
        writers.agree(&path, published).map(|()| path)
    }

    /// Waits for a thread.
    fn result(&mut self, task: impl Fn(&mut UnfinishedSave) -> Option<Task>) -> Result<(), SaveError> {
        let result = task(self).map_or(Ok(()), join).map_err(|error| self.target.error(error));
        if self.has_failed { Err(SaveError::Peer { path: self.target.path.clone() }) } else { result }
    }

    /// Ends the threads and removes the files.
    pub(super) fn abandon(mut self) {
        self.agreed.set(Agreed::ABANDONED);
        let _ = self.writer.take().map(join);
        if let Some(publisher) = self.publisher.take() {
            let _ = join(publisher);
        }
        self.remove();
    }

    /// Removes the files. If another rank still writes some, the next start removes those.
    fn remove(&self) {
        if self.leads {
            let _ = remove_files(&self.target.folder);
        }
    }
}

impl Drop for UnfinishedSave {
    /// After a fault the checkpoint may still be published, if all ranks can write it soon. Others wait to hear of the fault.
    fn drop(&mut self) {
        let begun = Instant::now();
        let runs = |task: &Option<Task>| task.as_ref().is_some_and(|task| !task.is_finished());
        while (runs(&self.writer) || runs(&self.publisher)) && begun.elapsed() < PATIENCE {
            sleep(POLL);
        }
        self.agreed.set(Agreed::ABANDONED);
    }
}

/// The result of a thread that has ended.
fn ended(task: &mut Option<Task>) -> Option<Result<(), WriteError>> {
    task.take_if(|task| task.is_finished()).map(join)
}

fn join<T>(task: JoinHandle<T>) -> T {
    task.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writes files, each on a thread of its own.
fn side_by_side(files: Vec<FileContent>, folder: &Path, activity: &Activity) -> Result<Vec<FileEntry>, WriteError> {
    std::thread::scope(|scope| {
        let start = |file: FileContent| {
            let path = file.path(folder);
            let thread = std::thread::Builder::new().spawn_scoped(scope, || file.write(folder, activity));
            thread.map_err(|error| WriteError(path, error))
        };
        let threads: Vec<_> = files.into_iter().map(start).collect();
        let end =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        threads.into_iter().map(|thread| thread.and_then(end)).collect()
    })
}

fn leave_note(path: &Path, written: &Written) -> Result<(), WriteError> {
    let text = serde_json::to_vec(written).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"));
    std::fs::write(path, text).map_err(|error| WriteError(path.into(), error))
}

/// Takes a note as soon as it is there. A part of one is not taken: it is no JSON.
fn await_note(path: &Path, agreed: &Agreed) -> Result<Written, WriteError> {
    loop {
        let (must_be_there, is_abandoned) = (agreed.is(Agreed::WRITTEN), agreed.is(Agreed::ABANDONED));
        match take_note(path) {
            Err(_) if is_abandoned => return Err(WriteError(path.into(), ErrorKind::Interrupted.into())),
            Err(error) if must_be_there => return Err(error),
            Err(_) => sleep(POLL),
            written => return written,
        }
    }
}

fn take_note(path: &Path) -> Result<Written, WriteError> {
    let at = |error: IoError| WriteError(path.into(), error);
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
    sync_folder(folder).map_err(|error| WriteError(folder.into(), error))
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
