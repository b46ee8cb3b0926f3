//! A Parquet file that was opened, and limits for reading it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use common::files::open_file;
use common::{UserError, caught};
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::text::watched::{Limits, watched};

/// Limits for opening a file, and for reading some of its rows. The library allocates as much as a length announces, and
/// recurses as deep as columns are nested.
const LIMITS: Limits = Limits { stack: 16 << 20, time: Duration::from_secs(3) };
/// The largest description at a file's end, in bytes.
const LARGEST_FOOTER: u64 = 16 << 20;
/// Stack for each byte of the description. Six bytes may describe a column that lies in the one before.
const STACK_OF_BYTE: usize = 256;
/// How deep columns nest.
const DEEPEST: usize = 64;

/// A Parquet file with a readable description.
pub(crate) struct ParquetFile {
    pub(crate) name: String,
    pub(crate) reader: SerializedFileReader<File>,
    /// The file's bytes.
    pub(crate) len: u64,
}

impl ParquetFile {
    /// Opens a Parquet file and reads the file's description.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(crate) fn open(path: &Path) -> Result<ParquetFile, UserError> {
        let name = path.display().to_string();
        match opened(path) {
            Ok((reader, len)) => Ok(ParquetFile { name, reader, len }),
            Err(problem) => Err(damaged(&name, &problem)),
        }
    }
}

/// The file and its bytes.
fn opened(path: &Path) -> Result<(SerializedFileReader<File>, u64), String> {
    let said = |error: std::io::Error| error.to_string();
    let file = open_file(path).map_err(said)?;
    let len = file.metadata().map_err(said)?.len();
    // A description's length and `PAR1` are the end.
    let mut end = [0; 8];
    file.read_exact_at(&mut end, len.saturating_sub(8)).map_err(said)?;
    let footer = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if footer > LARGEST_FOOTER {
        return Err(format!("its description of itself has {footer} bytes, and {LARGEST_FOOTER} are read at most"));
    }
    let stack = LIMITS.stack + STACK_OF_BYTE * footer as usize;
    let reader = within(Limits { stack, ..LIMITS }, || {
        let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        match columns.iter().any(|column| column.path().parts().len() > DEEPEST) {
            true => Err(format!("its columns are nested more than {DEEPEST} deep")),
            false => Ok(reader),
        }
    });
    Ok((reader?, len))
}

/// What `read` reads from `from`, and `from`.
///
/// # Errors
/// The mistake in the file; what it announces takes more time or memory than it may.
pub(crate) fn read_from<R: Send + 'static, T: Send + 'static>(
    mut from: R,
    read: impl FnOnce(&mut R) -> Result<T, String> + Send + 'static,
) -> Result<(R, T), String> {
    within(LIMITS, || {
        let read = read(&mut from)?;
        Ok((from, read))
    })
}

/// The result of `work` within limits. A panic of the library is a mistake in the file.
fn within<T: Send + 'static>(
    limits: Limits,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    watched(limits, |_| caught(work).unwrap_or_else(Err))?
}

/// The error for a file that cannot be read.
pub(crate) fn damaged(name: &str, problem: &str) -> UserError {
    UserError::new(
        format!("{name} cannot be read: {problem}"),
        "a Parquet file is whole, and its text is UTF-8",
        "download or write it again",
    )
}
