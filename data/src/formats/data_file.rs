//! Files of data, read by position. Data may be larger than memory. The system keeps bytes that were read, for all
//! ranks of a node.
//!
//! Nothing is mapped into memory. If a file got shorter, touching a mapped byte behind its end would end the process by
//! a signal. If the bytes of text change while they are read, that is undefined behaviour.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::files::open_file;

/// A file of data.
pub(crate) struct DataFile {
    file: File,
    len: u64,
}

impl DataFile {
    /// Opens a file.
    ///
    /// # Errors
    /// An error of the operating system. A path that is not a regular file is refused: opening a pipe would wait for a
    /// writer.
    pub(crate) fn open(path: &Path) -> Result<DataFile> {
        let file = open_file(path)?;
        let len = file.metadata()?.len();
        Ok(DataFile { file, len })
    }

    /// Bytes of the file at opening.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads the bytes from `at` on until `bytes` is full.
    ///
    /// # Errors
    /// An error of the operating system; the file is shorter now.
    pub(crate) fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.shorter(),
            _ => error,
        })
    }

    fn shorter(&self) -> Error {
        let now = self.file.metadata().map_or("fewer".into(), |now| now.len().to_string());
        let text = format!("it had {} bytes when it was opened and now has {now}", self.len);
        Error::new(ErrorKind::UnexpectedEof, text)
    }
}

/// Reads a data file, or a part of the file, from the first to the last byte.
pub(crate) struct Sequential<'f> {
    file: &'f DataFile,
    /// The next byte to read from the file.
    at: u64,
    end: u64,
    bytes: Vec<u8>,
    /// How many of `bytes` were taken.
    taken: usize,
}

impl<'f> Sequential<'f> {
    /// A reader of the bytes `at..end`. The file must have them.
    pub(crate) fn new(file: &'f DataFile, at: u64, end: u64) -> Sequential<'f> {
        Sequential { file, at, end, bytes: Vec::new(), taken: 0 }
    }

    /// The bytes that were read and not taken yet.
    pub(crate) fn buffer(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Reads until the buffer has `wanted` bytes, or all of the rest.
    ///
    /// # Errors
    /// As [`DataFile::read`].
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<()> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let held = self.bytes.len();
        let more = (wanted.saturating_sub(held) as u64).min(self.end - self.at);
        self.bytes.resize(held + more as usize, 0);
        self.file.read(&mut self.bytes[held..], self.at)?;
        self.at += more;
        Ok(())
    }

    /// Drops the first `count` bytes of the buffer.
    pub(crate) fn skip(&mut self, count: usize) {
        self.taken += count;
    }
}
