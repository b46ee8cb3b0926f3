//! Files mapped into memory. Data may be larger than memory, and all ranks of a node share one copy.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

/// A file mapped for reading.
pub struct MappedFile {
    file: File,
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// What the operating system said. A path that is not a regular file is refused: opening a pipe would wait for a writer.
    pub fn open(path: &Path) -> std::io::Result<MappedFile> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is only read, as bytes, for which every value is valid: other writers may change the values, not
        // the soundness. `bytes` checks before each use that the file has not shrunk.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { file, map })
    }

    /// All bytes of the file as it was opened.
    ///
    /// # Errors
    /// The file is shorter now: touching the missing bytes would end the process by a signal.
    pub fn bytes(&self) -> std::io::Result<&[u8]> {
        let now = self.file.metadata()?.len();
        if now < self.map.len() as u64 {
            let text = format!("it had {} bytes when it was opened and now has {now}", self.map.len());
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text));
        }
        Ok(&self.map)
    }
}
