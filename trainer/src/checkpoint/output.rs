//! Files of a checkpoint during the writing. They are hashed and synced beside that.

use std::fs::File;
use std::io::{Error as IoError, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use launch::watch::activity::{Activity, Doing};
use serde::{Deserialize, Serialize};

use super::content_hash::Hasher;
use super::file::CheckpointFile;
use super::manifest::FileEntry;
use super::read::CHUNK;

/// So many bytes of a file are synced at once, so that the last sync is short too. As many again may be written meanwhile.
const UNSYNCED: u64 = 256 << 20;

/// A file or folder that the operating system refused to write.
pub(super) struct WriteError(pub(super) PathBuf, pub(super) IoError);

/// Bytes that one thread writes and another one hashes.
pub(super) type Content = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// How long each part of a save took, in seconds. Of files or ranks that write side by side, each part is the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SaveSeconds {
    /// Waits for the copy of the state.
    pub(super) copy: f64,
    pub(super) hash: f64,
    pub(super) write: f64,
    pub(super) sync: f64,
    /// The folder's change of name, from temporary to final.
    pub(super) rename: f64,
}

impl SaveSeconds {
    pub(super) fn longest(self, other: SaveSeconds) -> SaveSeconds {
        SaveSeconds {
            copy: self.copy.max(other.copy),
            hash: self.hash.max(other.hash),
            write: self.write.max(other.write),
            sync: self.sync.max(other.sync),
            rename: self.rename.max(other.rename),
        }
    }
}

impl std::fmt::Display for SaveSeconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SaveSeconds { copy, hash, write, sync, rename } = self;
        write!(f, "copy {copy:.2} s, hash {hash:.2} s, write {write:.2} s, sync {sync:.2} s, rename {rename:.2} s")
    }
}

/// Work of another thread, and the time of that work.
type Beside<T> = JoinHandle<(T, Duration)>;

/// A file being written, and its entry for the manifest.
pub(super) struct Output<'a> {
    path: PathBuf,
    file: Arc<File>,
    name: String,
    /// Written.
    bytes: u64,
    activity: &'a Activity,
    pub(super) seconds: SaveSeconds,
    /// The hash so far. `None` while `hashing` has it.
    hash: Option<Hasher>,
    hashing: Option<Beside<Hasher>>,
    syncing: Option<Beside<std::io::Result<()>>>,
}

impl<'a> Output<'a> {
    pub(super) fn create(
        folder: &Path,
        file: CheckpointFile,
        activity: &'a Activity,
    ) -> Result<Output<'a>, WriteError> {
        let name = file.name();
        debug_assert_eq!(CheckpointFile::named(&name), Some(file), "pruning would take it for somebody else's");
        let path = folder.join(&name);
        let file = File::create_new(&path).map_err(|error| WriteError(path.clone(), error))?;
        Ok(Output {
            path,
            file: Arc::new(file),
            name,
            bytes: 0,
            activity,
            seconds: SaveSeconds::default(),
            hash: Some(Hasher::new()),
            hashing: None,
            syncing: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn write(&mut self, content: Content) -> Result<(), WriteError> {
        self.try_write(content).map_err(|error| WriteError(self.path.clone(), error))
    }

    fn try_write(&mut self, content: Content) -> std::io::Result<()> {
        self.hash_beside(content.clone())?;
        for chunk in (*content).as_ref().chunks(CHUNK) {
            let begun = Instant::now();
            (&*self.file).write_all(chunk)?;
            self.seconds.write += begun.elapsed().as_secs_f64();
            let before = self.bytes / UNSYNCED;
            self.bytes += chunk.len() as u64;
            if self.bytes / UNSYNCED > before {
                self.sync_beside()?;
            }
            self.activity.advance_while(Doing::Writes);
        }
        Ok(())
    }

    /// Hashes the content on another thread, after the file's content so far. A little is hashed at once.
    fn hash_beside(&mut self, content: Content) -> std::io::Result<()> {
        let mut hash = self.hash_so_far();
        if (*content).as_ref().len() < 1 << 16 {
            hash.add((*content).as_ref());
            self.hash = Some(hash);
            return Ok(());
        }
        self.hashing = Some(beside(move || {
            hash.add((*content).as_ref());
            hash
        })?);
        Ok(())
    }

    /// The hash of all that was written. It waits for the other thread.
    fn hash_so_far(&mut self) -> Hasher {
        if let Some(task) = self.hashing.take() {
            let (hash, time) = join(task);
            self.seconds.hash += time.as_secs_f64();
            return hash;
        }
        self.hash.take().unwrap_or_else(|| unreachable!("it is here if no thread has it"))
    }

    /// Syncs all that was written so far on another thread, after the sync before.
    fn sync_beside(&mut self) -> std::io::Result<()> {
        self.end_sync()?;
        let file = self.file.clone();
        self.syncing = Some(beside(move || file.sync_data())?);
        Ok(())
    }

    fn end_sync(&mut self) -> std::io::Result<()> {
        let Some(task) = self.syncing.take() else { return Ok(()) };
        let (result, time) = join(task);
        self.seconds.sync += time.as_secs_f64();
        result
    }

    /// Waits until the file is on disk.
    pub(super) fn finish(mut self) -> Result<(FileEntry, SaveSeconds), WriteError> {
        let before = self.end_sync();
        let begun = Instant::now();
        before.and_then(|()| self.file.sync_all()).map_err(|error| WriteError(self.path.clone(), error))?;
        self.seconds.sync += begun.elapsed().as_secs_f64();
        let hash = self.hash_so_far().end();
        Ok((FileEntry { name: self.name, bytes: self.bytes, hash }, self.seconds))
    }
}

/// Does work on another thread.
fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Beside<T>> {
    Builder::new().name("checkpoint".into()).spawn(move || {
        let begun = Instant::now();
        let result = work();
        (result, begun.elapsed())
    })
}

fn join<T>(task: JoinHandle<T>) -> T {
    task.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
