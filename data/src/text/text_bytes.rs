//! The bytes of a text file, from the first to the last, unpacked if the file is packed.

use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use common::UserError;
use flate2::read::MultiGzDecoder;

use crate::formats::data_file::DataFile;

/// Bytes that are read at a time.
pub(crate) const READ: usize = 1 << 20;

/// How a file is packed, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstandard,
}

/// Kinds of files that may hold text and are not read, by their first bytes: a name, and whether one unpacks it.
const OTHER_KINDS: &[(&[u8], &str, bool)] = &[
    (b"PAR1", "a Parquet file", false),
    (b"ARROW1", "an Arrow file", false),
    (b"BZh", "packed with bzip2", true),
    (b"\xfd7zXZ\0", "packed with xz", true),
    (b"PK\x03\x04", "packed with zip", true),
];

/// The bytes of a file, read through a buffer.
pub(crate) struct TextBytes<'f> {
    path: &'f Path,
    packing: Option<Packing>,
    reader: Box<dyn Read + 'f>,
    bytes: Vec<u8>,
    /// How many of these bytes were taken.
    taken: usize,
    ended: bool,
}

/// A file of data as the standard library reads it.
struct Stored<'f> {
    file: &'f DataFile,
    at: u64,
}

impl Read for Stored<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = (bytes.len() as u64).min(self.file.len() - self.at) as usize;
        self.file.read(&mut bytes[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<'f> TextBytes<'f> {
    /// A reader of the file from its first byte.
    ///
    /// # Errors
    /// The file cannot be read, or holds data of a kind that is not read.
    pub(crate) fn new(path: &'f Path, file: &'f DataFile) -> Result<TextBytes<'f>, UserError> {
        let mut begin = vec![0; file.len().min(8) as usize];
        file.read(&mut begin, 0).map_err(|error| cannot_be_read(path, &error.to_string()))?;
        let stored = Stored { file, at: 0 };
        let packing = match &begin[..] {
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Packing::Zstandard),
            _ => None,
        };
        let reader: Box<dyn Read + 'f> = match packing {
            None => Box::new(stored),
            Some(Packing::Gzip) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ, stored))),
            Some(Packing::Zstandard) => {
                Box::new(zstd::Decoder::new(stored).map_err(|error| cannot_be_read(path, &error.to_string()))?)
            }
        };
        Ok(TextBytes { path, packing, reader, bytes: Vec::new(), taken: 0, ended: false })
    }

    /// The bytes that were read and not taken yet.
    pub(crate) fn buffer(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Whether the buffer is known to have all of the rest.
    pub(crate) fn is_complete(&self) -> bool {
        self.ended
    }

    /// Reads until the buffer has `wanted` bytes, or all of the rest.
    ///
    /// # Errors
    /// The file cannot be read, is shorter now, or is packed and damaged.
    pub(crate) fn fill(&mut self, wanted: usize) -> Result<(), UserError> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        while !self.ended && self.bytes.len() < wanted {
            let held = self.bytes.len();
            self.bytes.resize(held + (wanted - held).min(READ), 0);
            let read = self.reader.read(&mut self.bytes[held..]);
            self.bytes.truncate(held + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(count) => self.ended = count == 0,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    /// The first `count` bytes of the buffer, which are taken out of it.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.buffer()[..count].to_vec();
        self.taken += count;
        bytes
    }

    /// Drops the first `count` bytes of the buffer.
    pub(crate) fn skip(&mut self, count: usize) {
        self.taken += count;
    }

    fn failed(&self, error: &std::io::Error) -> UserError {
        match self.packing {
            None => cannot_be_read(self.path, &error.to_string()),
            Some(_) => UserError::new(
                format!("{} cannot be unpacked: {error}", self.path.display()),
                "a packed file is whole",
                "download or pack it again",
            ),
        }
    }
}

pub(crate) fn cannot_be_read(path: &Path, how: &str) -> UserError {
    let what = format!("{} cannot be read: {how}", path.display());
    UserError::new(what, "data do not change while they are read", "start again")
}

/// The file's name without the extension of its packing.
pub(crate) fn unpacked_name(path: &Path) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz" | "zst" | "zstd") => path.with_extension(""),
        _ => path.into(),
    }
}

/// The error for a file that holds data of a kind that is not read; `None` for any other.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn other_kind(path: &Path, file: &DataFile) -> Result<Option<UserError>, UserError> {
    let mut begin = vec![0; file.len().min(8) as usize];
    file.read(&mut begin, 0).map_err(|error| cannot_be_read(path, &error.to_string()))?;
    let known = OTHER_KINDS.iter().find(|(magic, ..)| begin.starts_with(magic));
    Ok(known.map(|(_, kind, unpacks)| {
        let fix = match unpacks {
            true => "unpack it, or pack it with gzip or zstd".into(),
            false => format!(
                "write its text as JSON lines, for example with Python: pandas.read_parquet({:?})[[\"text\"]]\
                 .to_json(\"text.jsonl\", orient=\"records\", lines=True)",
                path.display().to_string()
            ),
        };
        let rule = "data are UTF-8 text or JSON lines, plain or packed with gzip or zstd, or token files";
        UserError::new(format!("{} is {kind}", path.display()), rule, fix)
    }))
}
