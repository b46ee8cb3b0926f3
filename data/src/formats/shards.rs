//! Writes a folder of token files. The folder gets its name when all of them are complete and on disk.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::DataError;
use crate::formats::llmc::{HEADER_BYTES, encode_header};
use crate::formats::tokens::TokenType;

/// A folder of token files being written, in the format of [`llmc`](crate::llmc): `tokens_000000.bin`,
/// `tokens_000001.bin` and so on.
pub(crate) struct ShardWriter {
    /// The folder's path when the folder is complete.
    folder: PathBuf,
    /// The folder's path until then, in the same parent.
    partial: PathBuf,
    /// The locked [`MARK`]: it shows other processes that somebody writes the partial folder. The system releases it however
    /// the process ends.
    _lock: File,
    kind: TokenType,
    /// Tokens of each file. Only the last may have fewer.
    tokens_per_shard: u64,
    shard: Option<Shard>,
    /// Files begun.
    pub(crate) shards: usize,
    /// Folders with the name of a leftover, but without the mark: somebody else made them.
    pub(crate) foreign: Vec<PathBuf>,
}

/// The file that a writer makes and locks in the partial folder.
const MARK: &str = ".trainer-writes";

struct Shard {
    file: BufWriter<File>,
    tokens: u64,
    largest: u32,
}

impl ShardWriter {
    /// Begins the files of `folder`, of `tokens_per_shard` tokens each. Removes leftovers of processes that were killed
    /// while they wrote it.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn create(folder: &Path, kind: TokenType, tokens_per_shard: u64) -> Result<ShardWriter, DataError> {
        let folder = std::path::absolute(folder).map_err(|error| failed(folder, &error))?;
        let name = folder.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let prefix = format!(".{name}.partial-");
        let foreign = remove_leftovers(&folder, &prefix);
        let partial = folder.with_file_name(format!("{prefix}{}", std::process::id()));
        let (partial, _lock) = make_locked(&partial).map_err(|error| failed(&partial, &error))?;
        Ok(ShardWriter { folder, partial, _lock, kind, tokens_per_shard, shard: None, shards: 0, foreign })
    }

    /// Appends tokens. A full file is closed, and the next one is begun.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn push(&mut self, mut tokens: &[u32]) -> Result<(), DataError> {
        let mut bytes = Vec::new();
        while !tokens.is_empty() {
            let shard = match &mut self.shard {
                Some(shard) => shard,
                empty => {
                    let path = self.partial.join(format!("tokens_{:06}.bin", self.shards));
                    self.shards += 1;
                    empty.insert(Shard::create(&path).map_err(|error| failed(&path, &error))?)
                }
            };
            let (now, later) = tokens.split_at(tokens.len().min((self.tokens_per_shard - shard.tokens) as usize));
            bytes.clear();
            self.kind.encode(now, &mut bytes);
            shard.file.write_all(&bytes).map_err(|error| failed(&self.partial, &error))?;
            shard.tokens += now.len() as u64;
            shard.largest = now.iter().copied().fold(shard.largest, u32::max);
            if shard.tokens == self.tokens_per_shard {
                self.close()?;
            }
            tokens = later;
        }
        Ok(())
    }

    /// Adds a file of another kind.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn add(&self, name: &str, content: &[u8]) -> Result<(), DataError> {
        let path = self.partial.join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(|error| failed(&path, &error))
    }

    /// Closes the last file and gives the folder the final name. A folder of that name must not exist, or be empty.
    ///
    /// # Errors
    /// An error of the operating system. Then nothing is left behind.
    pub(crate) fn finish(mut self) -> Result<(), DataError> {
        self.close()?;
        let parent = self.folder.parent().unwrap_or(Path::new("/"));
        let sync = |path: &Path| File::open(path)?.sync_all();
        std::fs::remove_file(self.partial.join(MARK))
            .and_then(|()| sync(&self.partial))
            .and_then(|()| std::fs::rename(&self.partial, &self.folder))
            .and_then(|()| sync(parent))
            .map_err(|error| failed(&self.folder, &error))
    }

    /// Closes the open file, if there is one: writes its header, then waits until all of it is on disk.
    fn close(&mut self) -> Result<(), DataError> {
        let Some(shard) = self.shard.take() else { return Ok(()) };
        let header = encode_header(self.kind, shard.tokens, shard.largest);
        let write = || {
            let mut file = shard.file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.sync_all()
        };
        write().map_err(|error| failed(&self.partial, &error))
    }
}

impl Shard {
    fn create(path: &Path) -> std::io::Result<Shard> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&[0; HEADER_BYTES])?;
        Ok(Shard { file, tokens: 0, largest: 0 })
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        // After `finish` the folder has another name, and nothing is removed.
        let _ = std::fs::remove_dir_all(&self.partial);
    }
}

/// Removes leftovers beside `folder`: folders with a name beginning with `prefix`, with the mark, and without a process
/// that writes them. An empty folder without the mark is one too. Returns other folders without the mark, and does not
/// remove them.
fn remove_leftovers(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let beside = folder.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let named = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes());
    let mut foreign = Vec::new();
    for entry in beside.into_iter().flatten().flatten().filter(named) {
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match File::open(path.join(MARK)) {
            Ok(mark) if is_folder && mark.try_lock().is_ok() => {
                let _ = std::fs::remove_dir_all(&path);
            }
            // Somebody writes it.
            Ok(_) if is_folder => {}
            // A process was killed before it made its mark. Only an empty folder is removed.
            Err(_) if is_folder && std::fs::remove_dir(&path).is_ok() => {}
            // Another process may have removed it.
            _ if path.exists() => foreign.push(path),
            _ => {}
        }
    }
    foreign
}

/// Makes a folder at `path`, or with a number behind that name if something is there, with a locked [`MARK`]. Some network file
/// systems have no locks: then its leftovers stay.
fn make_locked(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let mut number = 0;
    loop {
        let folder = match number {
            0 => path.to_path_buf(),
            number => PathBuf::from(format!("{}-{number}", path.display())),
        };
        number += 1;
        match std::fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        let at = folder.join(MARK);
        let mark = match File::create_new(&at) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            made => made?,
        };
        let _ = mark.try_lock();
        // Before it was locked, another process may have taken the folder for a leftover.
        let made = mark.metadata()?;
        if std::fs::metadata(&at).is_ok_and(|there| (there.dev(), there.ino()) == (made.dev(), made.ino())) {
            return Ok((folder, mark));
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> DataError {
    DataError {
        what: format!("{} cannot be written: {error}", path.display()),
        fix: "check the folder's permissions and space, or name another with --output".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_has_left_goes_and_what_is_being_written_or_was_made_by_others_stays() {
        let parent = tempfile::tempdir().unwrap();
        let output = parent.path().join("out");
        let at = |name: &str| parent.path().join(name);
        let [left, other, own] = [".out.partial-4194305", ".other.partial-4194305", ".out.partial-notes"].map(at);
        for folder in [&left, &other, &own] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("tokens_000000.bin"), [0; 100]).unwrap();
        }
        std::fs::write(left.join(MARK), "").unwrap();
        let empty = at(".out.partial-4194307"); // its process was killed before it made its mark
        std::fs::create_dir(&empty).unwrap();
        // A user made this one. It stays, even with the name of this process.
        let same = at(&format!(".out.partial-{}", std::process::id()));
        std::fs::write(&same, "mine").unwrap();
        let (written, lock) = make_locked(&at(".out.partial-4194306")).unwrap();
        let mut writer = ShardWriter::create(&output, TokenType::U16, 10).unwrap();
        let there = [&left, &empty, &other, &own, &written].map(|path| path.exists());
        assert_eq!(there, [false, false, true, true, true]);
        writer.foreign.sort();
        let mut foreign = [own.clone(), same.clone()];
        foreign.sort();
        assert_eq!(writer.foreign, foreign);
        drop(lock);
        writer.push(&[1, 2, 3]).unwrap();
        writer.finish().unwrap();
        assert!(output.join("tokens_000000.bin").exists() && !output.join(MARK).exists());
        drop(ShardWriter::create(&at("out"), TokenType::U16, 10).unwrap());
        assert_eq!([&other, &own, &same, &written].map(|path| path.exists()), [true, true, true, false]);
        let names: Vec<_> = std::fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
