//! A Parquet file that was checked and opened.

use std::fs::File;
use std::path::Path;

use common::files::open_file;
use common::{UserError, caught};
use parquet::file::reader::SerializedFileReader;

use super::check::check_footer;

/// A Parquet file with a readable description.
pub(crate) struct ParquetFile {
    pub(crate) name: String,
    pub(crate) reader: SerializedFileReader<File>,
    /// The same file, for checks before the library reads anything.
    pub(crate) file: File,
    /// The file's bytes.
    pub(crate) len: u64,
}

impl ParquetFile {
    /// Opens a Parquet file and checks the file's description.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(crate) fn open(path: &Path) -> Result<ParquetFile, UserError> {
        let name = path.display().to_string();
        let damaged = |problem: String| damaged(&name, &problem);
        let opened = open_file(path).and_then(|file| Ok((file.try_clone()?, file.metadata()?.len(), file)));
        let (file, len, read) = opened.map_err(|error| damaged(error.to_string()))?;
        check_footer(&file, len).map_err(damaged)?;
        let reader = caught(|| SerializedFileReader::new(read))
            .and_then(|opened| opened.map_err(|error| error.to_string()))
            .map_err(damaged)?;
        Ok(ParquetFile { name, reader, file, len })
    }
}

/// The error for a file that cannot be read.
pub(crate) fn damaged(name: &str, problem: &str) -> UserError {
    UserError::new(
        format!("{name} cannot be read: {problem}"),
        "a Parquet file is whole, and its text is UTF-8",
        "download or write it again",
    )
}
