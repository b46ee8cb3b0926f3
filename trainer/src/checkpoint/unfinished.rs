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
use super::output::{Output, SaveSeconds, WriteError};
use super::tensor_file::FileContent;
use super::write::{Origin, free_space};
use super::writers::Writers;
use crate::error::SaveError;

/// The interval at which the rank that leads looks for the notes of others.
const POLL: Duration = Duration::from_millis(20);

/// How long a rank waits after a fault for the checkpoint that is being written.
const PATIENCE: Duration = Duration::from_secs(10);

/// The folders and the size of a checkpoint.
pub(super) struct Target {
    /// The folder of the run's checkpoints.
    pub(super) dir: PathBuf,
    /// The temporary folder of the files.
    pub(super) folder: PathBuf,
    /// The folder's name when the checkpoint is complete.
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
    seconds: SaveSeconds,
}

/// A checkpoint that is on disk.
pub(super) struct Published {
    pub(super) path: PathBuf,
    /// Bytes of all files of the checkpoint but the manifest.
    bytes: u64,
    /// From the beginning of the save, in seconds.
    all: f64,
    /// Of the slowest file or rank.
    seconds: SaveSeconds,
}

impl std::fmt::Display for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Published { path, bytes, all, seconds } = self;
        write!(f, "{}, {} in {all:.2} s: {seconds}", path.display(), common::format::bytes(*bytes as usize))
    }
}

/// The agreement of all ranks about the checkpoint's files.
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

type Task<T> = JoinHandle<Result<T, WriteError>>;

/// A checkpoint on its way to the disk. A thread of each rank writes the rank's files and leaves a note. One of the rank
/// that leads waits for all notes, and publishes the checkpoint: no rank waits for another one's disk meanwhile.
pub(super) struct UnfinishedSave {
    target: Arc<Target>,
    agreed: Agreed,
    writer: Option<Task<()>>,
    /// Of the rank that leads.
    publisher: Option<Task<Published>>,
    begun: Instant,
    /// Whether this rank removes the files of a checkpoint that failed.
    leads: bool,
    /// Whether a failure here was already returned by [`UnfinishedSave::news`].
    has_failed: bool,
}

/// What has become of a checkpoint since the last question.
pub(super) enum News {
    /// Nothing is known yet.
    None,
    /// The checkpoint is complete. Only the rank that leads hears it.
    Published(Published),
    /// This rank could not do its part.
    Failed(SaveError),
}

impl UnfinishedSave {
    pub(super) fn new(target: Target, leads: bool) -> UnfinishedSave {
        let (target, agreed) = (Arc::new(target), Agreed::default());
        UnfinishedSave {
            target,
            agreed,
            writer: None,
            publisher: None,
            begun: Instant::now(),
            leads,
            has_failed: false,
        }
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
            let written =
                files.and_then(|(files, seconds)| leave_note(&target.note(rank), &Written { files, tensors, seconds }));
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
        let (activity, ranks, begun) = (writers.activity.clone(), writers.ranks, self.begun);
        self.publisher = Some(self.task(move || {
            let (mut manifest, mut slowest) = (manifest, SaveSeconds::default());
            for rank in 0..ranks {
                let Written { files, tensors, seconds } = await_note(&target.note(rank), &agreed)?;
                manifest.files.extend(files);
                manifest.tensors.extend(tensors);
                slowest = slowest.longest(seconds);
            }
            let metrics = (!metrics.is_empty()).then_some((CheckpointFile::Single(Single::Metrics), &metrics[..]));
            let bytes = write_rest(&target.folder, origin.files().chain(metrics), manifest, &activity)?;
            let renaming = Instant::now();
            rename(&target.folder, &target.path).map_err(|error| WriteError(target.path.clone(), error))?;
            let seconds = SaveSeconds { rename: renaming.elapsed().as_secs_f64(), ..slowest };
            Ok(Published { path: target.path.clone(), bytes, all: begun.elapsed().as_secs_f64(), seconds })
        })?);
        Ok(())
    }

    fn task<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, WriteError> + Send + 'static,
    ) -> Result<Task<T>, SaveError> {
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(work);
        thread.map_err(|error| self.target.error(WriteError(self.target.path.clone(), error)))
    }

    /// Whether a thread of this rank still works on the checkpoint.
    pub(super) fn is_under_way(&self) -> bool {
        let writes = self.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        writes || self.publisher.as_ref().is_some_and(|publisher| !publisher.is_finished())
    }

    /// Whether this rank has said that it could not write its part.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// What is new. It does not wait.
    pub(super) fn news(&mut self) -> News {
        if let Some(Err(error)) = ended(&mut self.writer) {
            return self.failed(error);
        }
        match ended(&mut self.publisher) {
            None => News::None,
            Some(Ok(published)) => News::Published(published),
            Some(Err(error)) => self.failed(error),
        }
    }

    fn failed(&mut self, error: WriteError) -> News {
        self.has_failed = true;
        News::Failed(self.target.error(error))
    }

    /// Waits until the checkpoint is on disk. Only the rank that leads hears more, and not what [`UnfinishedSave::news`] said.
    /// All ranks call it together.
    ///
    /// # Errors
    /// See [`SaveError`]. A failure that [`UnfinishedSave::news`] returned is now as another rank's.
    pub(super) fn finish(mut self, writers: &Writers) -> Result<Option<Published>, SaveError> {
        let path = self.target.path.clone();
        let writer = self.writer.take();
        let written = self.result(writer);
        if let Err(error) = writers.agree(&path, written) {
            self.abandon();
            return Err(error);
        }
        self.agreed.set(Agreed::WRITTEN);
        let publisher = self.publisher.take();
        let published = self.result(publisher);
        if published.is_err() {
            self.remove();
        }
        writers.agree(&path, published)
    }

    /// Waits for a thread, if there is one.
    fn result<T>(&mut self, task: Option<Task<T>>) -> Result<Option<T>, SaveError> {
        let result = task.map(join).transpose().map_err(|error| self.target.error(error));
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
        while self.is_under_way() && begun.elapsed() < PATIENCE {
            sleep(POLL);
        }
        self.agreed.set(Agreed::ABANDONED);
    }
}

/// The result of a thread that has ended.
fn ended<T>(task: &mut Option<Task<T>>) -> Option<Result<T, WriteError>> {
    task.take_if(|task| task.is_finished()).map(join)
}

fn join<T>(task: JoinHandle<T>) -> T {
    task.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writes files side by side, with a thread for each file.
fn side_by_side(
    files: Vec<FileContent>,
    folder: &Path,
    activity: &Activity,
) -> Result<(Vec<FileEntry>, SaveSeconds), WriteError> {
    std::thread::scope(|scope| {
        let start = |file: FileContent| {
            let path = file.path(folder);
            let thread = std::thread::Builder::new().spawn_scoped(scope, || file.write(folder, activity));
            thread.map_err(|error| WriteError(path, error))
        };
        let threads: Vec<_> = files.into_iter().map(start).collect();
        let end =
            |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (mut files, mut slowest) = (Vec::new(), SaveSeconds::default());
        for thread in threads {
            let (file, seconds) = thread.and_then(end)?;
            files.push(file);
            slowest = slowest.longest(seconds);
        }
        Ok((files, slowest))
    })
}

fn leave_note(path: &Path, written: &Written) -> Result<(), WriteError> {
    let text = serde_json::to_vec(written).unwrap_or_else(|error| unreachable!("numbers and text are JSON: {error}"));
    std::fs::write(path, text).map_err(|error| WriteError(path.into(), error))
}

/// Takes a rank's note as soon as the note is there. A part of one is not taken: it is no JSON.
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

/// Writes the checkpoint's other files with the given contents, then the manifest, and syncs the folder. Returns the
/// bytes of all files but the manifest.
fn write_rest<'f>(
    folder: &Path,
    files: impl Iterator<Item = (CheckpointFile, &'f [u8])>,
    mut manifest: Manifest,
    activity: &Activity,
) -> Result<u64, WriteError> {
    for (file, content) in files {
        let mut output = Output::create(folder, file, activity)?;
        output.write(Arc::new(content.to_vec()))?;
        manifest.files.push(output.finish()?.0);
    }
    let bytes = manifest.bytes();
    let mut output = Output::create(folder, CheckpointFile::Single(Single::Manifest), activity)?;
    output.write(Arc::new(manifest.seal()))?;
    output.finish()?;
    sync_folder(folder).map_err(|error| WriteError(folder.into(), error))?;
    Ok(bytes)
}

/// Gives a folder its name, and syncs it so that the name survives a power cut.
pub(super) fn rename(folder: &Path, path: &Path) -> std::io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        remove(path)?;
    }
    std::fs::rename(folder, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

pub(super) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}
