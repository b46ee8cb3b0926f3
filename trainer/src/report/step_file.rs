//! A file with a line for each step. No line is lost while the process lives, though the disk is full for a while or the
//! file's folder is removed.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::files::replace_file;
use serde::Serialize;

/// The most bytes that wait for the disk, unless the disk refuses bytes.
const UNSYNCED: usize = 1 << 20;

/// A file of whole lines.
pub(crate) struct StepFile {
    path: PathBuf,
    file: File,
    /// Bytes of the file. Nothing of a line that was not written whole is among them.
    length: u64,
    /// The lines since the last sync.
    unsynced: Vec<u8>,
    /// How many bytes of `unsynced` are in the file.
    written: usize,
}

impl StepFile {
    /// Continues the open file at `path` after the last byte.
    ///
    /// # Errors
    /// Operating system errors.
    pub(crate) fn new(path: PathBuf, file: File) -> Result<StepFile> {
        let length = file.metadata()?.len();
        Ok(StepFile { path, file, length, unsynced: Vec::new(), written: 0 })
    }

    /// Adds a value as a line of JSON.
    ///
    /// # Errors
    /// As [`StepFile::write`].
    pub(crate) fn add(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Adds a line. It must end with a line break.
    ///
    /// # Errors
    /// Operating system errors. The line is kept, and written by a later call.
    pub(crate) fn write(&mut self, line: &[u8]) -> Result<()> {
        self.unsynced.extend(line);
        self.flush()?;
        if self.unsynced.len() > UNSYNCED { self.sync() } else { Ok(()) }
    }

    /// Waits until every line is on disk, in the file that the path names. A file that was removed is made again, with all
    /// its lines.
    ///
    /// # Errors
    /// Operating system errors; the path names another file. No line is lost: see [`StepFile::missing`].
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.restore()?;
        self.flush()?;
        self.file.sync_data()?;
        self.unsynced.clear();
        self.written = 0;
        Ok(())
    }

    /// The lines that may not be on disk, in the file that the path names.
    pub(crate) fn missing(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        if !self.is_there() {
            lines.resize(self.length as usize, 0);
            if self.file.read_exact_at(&mut lines, 0).is_ok() {
                lines.extend(&self.unsynced[self.written..]);
                return lines;
            }
            lines.clear();
        }
        lines.extend(&self.unsynced);
        lines
    }

    /// Writes the lines that are not in the file yet.
    fn flush(&mut self) -> Result<()> {
        // Somebody may have cut the file. A line after a gap would be unreadable.
        self.length = self.length.min(self.file.metadata()?.len());
        let lines = &self.unsynced[self.written..];
        if let Err(error) = self.file.write_all_at(lines, self.length) {
            let _ = self.file.set_len(self.length); // a part of a line
            return Err(error);
        }
        self.length += lines.len() as u64;
        self.written = self.unsynced.len();
        Ok(())
    }

    /// Whether the path names this file.
    fn is_there(&self) -> bool {
        let id = |found: &std::fs::Metadata| (found.dev(), found.ino());
        matches!((self.path.metadata(), self.file.metadata()), (Ok(there), Ok(here)) if id(&there) == id(&here))
    }

    /// Makes a removed file again.
    fn restore(&mut self) -> Result<()> {
        if self.is_there() {
            return Ok(());
        }
        if std::fs::symlink_metadata(&self.path).is_ok() {
            return Err(Error::new(ErrorKind::AlreadyExists, "another file has taken its place"));
        }
        let folder = self.path.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(folder)?;
        let copy = replace_file(&self.path, |copy| {
            let mut at = 0;
            let mut bytes = vec![0; 1 << 20];
            while at < self.length {
                let count = (self.length - at).min(bytes.len() as u64) as usize;
                self.file.read_exact_at(&mut bytes[..count], at)?;
                copy.write_all_at(&bytes[..count], at)?;
                at += count as u64;
            }
            copy.sync_all()
        })?;
        File::open(folder)?.sync_all()?;
        self.file = copy;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(path: &Path) -> StepFile {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        StepFile::new(path.into(), file).unwrap()
    }

    #[test]
    fn a_removed_folder_comes_back_with_every_line_once() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("log");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("metrics.jsonl");
        std::fs::write(&path, "0\n").unwrap();
        let mut lines = opened(&path);
        lines.write(b"1\n").unwrap();
        lines.sync().unwrap();
        lines.write(b"2\n").unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        lines.write(b"3\n").unwrap();
        assert_eq!(lines.missing(), b"0\n1\n2\n3\n");
        lines.sync().unwrap();
        lines.write(b"4\n").unwrap();
        assert_eq!(lines.missing(), b"4\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "0\n1\n2\n3\n4\n");
    }

    #[test]
    fn a_file_that_took_the_place_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut lines = opened(&path);
        lines.write(b"1\n").unwrap();
        std::fs::rename(&path, folder.path().join("aside")).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(lines.sync().unwrap_err().to_string().contains("another file"));
        assert_eq!((std::fs::read(&path).unwrap(), lines.missing()), (b"theirs".to_vec(), b"1\n".to_vec()));
    }

    #[test]
    fn a_line_that_a_full_disk_refused_is_kept_whole_and_written_later() {
        // /dev/full refuses every write.
        let file = File::options().read(true).write(true).open("/dev/full").unwrap();
        let mut lines = StepFile::new("/dev/full".into(), file).unwrap();
        assert!(lines.write(b"1\n").is_err() && lines.write(b"2\n").is_err() && lines.sync().is_err());
        assert_eq!(lines.missing(), b"1\n2\n");
        let folder = tempfile::tempdir().unwrap();
        lines = StepFile { unsynced: lines.unsynced, ..opened(&folder.path().join("x")) };
        lines.write(b"3\n").unwrap();
        lines.sync().unwrap();
        assert!(lines.missing().is_empty());
        assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), b"1\n2\n3\n");
    }

    #[test]
    fn lines_follow_what_is_left_of_a_file_that_was_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mut lines = opened(&path);
        lines.write(b"1\n").unwrap();
        std::fs::write(&path, "").unwrap();
        lines.write(b"2\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
    }
}
