//! The bytes of a text file, from the first to the last, unpacked if the file is packed.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use common::UserError;
use flate2::read::MultiGzDecoder;

use super::unpacked::Unpacked;
use crate::formats::data_file::DataFile;

/// Bytes that are read at a time.
pub(crate) const READ: usize = 1 << 20;

/// Base-2 logarithm of the largest window of a zstd file: that of `zstd --long=31`.
const LONGEST_WINDOW: u32 = 31;

/// The mark of the byte order of UTF-8, which some editors put at the begin of a file.
pub(crate) const MARK: &[u8] = b"\xef\xbb\xbf";

/// What is known about a mark at the begin of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Unknown,
    None,
    LeftOut,
}

/// How a file is packed, by the file's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstandard,
}

/// The error for a file of a kind that may hold text but is not read.
pub(crate) struct OtherKind {
    pub(crate) error: UserError,
    /// Files of this kind hold only data. The user expects it to be read, even if only its folder was named.
    pub(crate) is_data: bool,
}

/// The bytes of a file, read through a buffer.
pub(crate) struct TextBytes<'f> {
    path: &'f Path,
    packing: Option<Packing>,
    reader: Box<dyn Read + 'f>,
    bytes: Vec<u8>,
    /// How many of `bytes` were taken.
    taken: usize,
    ended: bool,
    /// What is known about a mark of the byte order at the begin. It is no part of the text.
    mark: Mark,
    unpacked: Unpacked,
}

/// A data file, as the standard library reads files.
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
    /// A reader of the file from the first byte.
    ///
    /// # Errors
    /// The file cannot be read, or holds data of a kind that is not read.
    pub(crate) fn new(path: &'f Path, file: &'f DataFile) -> Result<TextBytes<'f>, UserError> {
        let mut begin = vec![0; file.len().min(8) as usize];
        file.read(&mut begin, 0).map_err(|error| cannot_be_read(path, &error.to_string()))?;
        let stored = Stored { file, at: 0 };
        let packing = match &begin[..] {
            [0x1f, 0x8b, ..] => Some(Packing::Gzip),
            // A frame, or one that is skipped, as parallel packers put first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Packing::Zstandard),
            _ => None,
        };
        let reader: Box<dyn Read + 'f> = match packing {
            None => Box::new(stored),
            Some(Packing::Gzip) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ, stored))),
            Some(Packing::Zstandard) => {
                let unpack = || {
                    let mut decoder = zstd::Decoder::new(stored)?;
                    decoder.window_log_max(LONGEST_WINDOW)?;
                    Ok(decoder)
                };
                Box::new(unpack().map_err(|error: std::io::Error| cannot_be_read(path, &error.to_string()))?)
            }
        };
        let unpacked = Unpacked::of(file.len());
        Ok(TextBytes {
            path,
            packing,
            reader,
            bytes: Vec::new(),
            taken: 0,
            ended: false,
            mark: Mark::Unknown,
            unpacked,
        })
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
        if !self.ended && self.bytes.len() < wanted {
            let missing = wanted - self.bytes.len();
            let read = self.reader.by_ref().take(missing as u64).read_to_end(&mut self.bytes);
            let read = read.map_err(|error| self.failed(&error))?;
            if self.packing.is_some() {
                self.unpacked.add(&self.path.display().to_string(), read as u64)?;
            }
            self.ended = self.bytes.len() < wanted;
        }
        if self.mark == Mark::Unknown && (self.ended || self.bytes.len() >= MARK.len()) {
            self.mark = if self.bytes.starts_with(MARK) { Mark::LeftOut } else { Mark::None };
            if self.mark == Mark::LeftOut {
                self.skip(MARK.len());
                return self.fill(wanted);
            }
        }
        Ok(())
    }

    /// Whether the file begins with a mark of the byte order, which is left out. Known once bytes were read.
    pub(crate) fn has_mark(&self) -> bool {
        self.mark == Mark::LeftOut
    }

    /// Takes the first `count` bytes out of the buffer.
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

/// The file's name without the extension of the packing.
pub(crate) fn unpacked_name(path: &Path) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz" | "zst" | "zstd") => path.with_extension(""),
        _ => path.into(),
    }
}

/// Up to `count` bytes of the file from `at` on.
fn part(path: &Path, file: &DataFile, at: u64, count: u64) -> Result<Vec<u8>, UserError> {
    let mut bytes = vec![0; count.min(file.len()) as usize];
    file.read(&mut bytes, at).map_err(|error| cannot_be_read(path, &error.to_string()))?;
    Ok(bytes)
}

/// Whether a file is Parquet. One that is cut has no end: its name says it then.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_parquet(path: &Path, file: &DataFile) -> Result<bool, UserError> {
    const MAGIC: &[u8] = b"PAR1";
    let ends = || Ok::<_, UserError>(part(path, file, file.len().saturating_sub(4), 4)? == MAGIC);
    let is_named = path.extension().is_some_and(|extension| extension == "parquet");
    Ok(part(path, file, 0, 4)? == MAGIC && (is_named || ends()?))
}

/// The error for a file of a kind that may hold text but is not read; `None` for any other file.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn other_kind(path: &Path, file: &DataFile) -> Result<Option<OtherKind>, UserError> {
    let begin = part(path, file, 0, 10)?;
    let table = |reader: &str| {
        let path = path.display().to_string();
        format!("write it as Parquet, for example with Python: pandas.{reader}({path:?}).to_parquet(\"text.parquet\")")
    };
    let unpack = || "unpack it, or pack it with gzip or zstd".to_string();
    let (kind, fix, is_data) = match &begin[..] {
        _ if begin.starts_with(b"ARROW1\0\0") => ("an Arrow file", table("read_feather"), true),
        [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', b'&', b'S', b'Y'] => ("packed with bzip2", unpack(), false),
        _ if begin.starts_with(b"\xfd7zXZ\0") => ("packed with xz", unpack(), false),
        _ if begin.starts_with(b"PK\x03\x04") => ("packed with zip", unpack(), false),
        _ if is_tar(TextBytes::new(path, file)?)? => ("a tar archive", "unpack it".into(), false),
        _ => return Ok(None),
    };
    let rule = "data are UTF-8 text or JSON lines, plain or packed with gzip or zstd, Parquet, or token files";
    Ok(Some(OtherKind { error: UserError::new(format!("{} is {kind}", path.display()), rule, fix), is_data }))
}

/// Whether the bytes, unpacked, begin as a tar archive.
fn is_tar(mut bytes: TextBytes<'_>) -> Result<bool, UserError> {
    const MAGIC: std::ops::Range<usize> = 257..262;
    bytes.fill(MAGIC.end)?;
    Ok(bytes.buffer().get(MAGIC) == Some(b"ustar"))
}
