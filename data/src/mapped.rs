//! Files mapped into memory: shards are larger than memory, and all ranks of a node share one copy of them.
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
    /// What the operating system said, or that it is no file. Opening a pipe would wait for a writer.
    pub fn open(path: &Path) -> std::io::Result<MappedFile> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is only ever read, as bytes, for which every value is valid. Writers may change what is read but
        // not what is sound; a file that shrinks under the map is looked for before each use, in `bytes`.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { file, map })
    }

    /// The bytes it had when it was opened.
    ///
    /// # Errors
    /// It was made shorter since: touching what is gone would end the process by a signal.
    pub fn bytes(&self) -> std::io::Result<&[u8]> {
        let now = self.file.metadata()?.len();
        if now < self.map.len() as u64 {
            let text = format!("it had {} bytes when it was opened and now has {now}", self.map.len());
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, text));
        }
        Ok(&self.map)
    }
}
