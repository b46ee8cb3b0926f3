//! A Parquet file that was opened, and limits for reading a file.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use common::UserError;
use common::files::open_file;
use parquet::file::reader::SerializedFileReader;

use super::columns::check_columns;
use crate::text::watched::{Limits, watched};

/// Limits for opening a file, and for reading some of its rows: the library allocates as much as a length announces.
const LIMITS: Limits = Limits { stack: 16 << 20, time: Duration::from_secs(3) };

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
    check_columns(&file, len)?;
    let reader = watched(LIMITS, |_| SerializedFileReader::new(file).map_err(|error| error.to_string()))?;
    Ok((reader, len))
}

/// A reader, and the result of `read` with it.
///
/// # Errors
/// The mistake in the file; reading takes more time or memory than it may.
pub(crate) fn read_from<R: Send + 'static, T: Send + 'static>(
    mut reader: R,
    read: impl FnOnce(&mut R) -> Result<T, String> + Send + 'static,
) -> Result<(R, T), String> {
    watched(LIMITS, |_| {
        let read = read(&mut reader)?;
        Ok((reader, read))
    })
}

/// The error for a file that cannot be read.
pub(crate) fn damaged(name: &str, problem: &str) -> UserError {
    UserError::new(
        format!("{name} cannot be read: {problem}"),
        "a Parquet file is whole, and its text is UTF-8",
        "download or write it again",
    )
}
