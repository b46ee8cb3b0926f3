//! Writes a folder of token files, all or nothing: it takes its name when it is complete and on disk.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::DataError;
use super::llmc::{HEADER, header};
use super::tokens::TokenType;

/// A folder of token files being written, `tokens_000000.bin` and on, in the format of [`super::llmc`].
pub struct ShardWriter {
    /// Where it will be.
    folder: PathBuf,
    /// Where it is until then, beside it.
    partial: PathBuf,
    kind: TokenType,
    /// Tokens of a file, but of the last.
    most: u64,
    shard: Option<Shard>,
    /// Files begun.
    pub shards: usize,
}

struct Shard {
    file: BufWriter<File>,
    tokens: u64,
    largest: u32,
}

impl ShardWriter {
    /// Starts the files of `folder`, of `most` tokens each.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn create(folder: &Path, kind: TokenType, most: u64) -> Result<ShardWriter, DataError> {
        let folder = std::path::absolute(folder).map_err(|error| failed(folder, &error))?;
        let name = folder.file_name().map(|name| name.display().to_string()).unwrap_or_default();
        let partial = folder.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        std::fs::create_dir_all(&partial).map_err(|error| failed(&partial, &error))?;
        Ok(ShardWriter { folder, partial, kind, most, shard: None, shards: 0 })
    }

    /// Appends tokens, which go on in the next file where one is full.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn push(&mut self, mut tokens: &[u32]) -> Result<(), DataError> {
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
            let (now, later) = tokens.split_at(tokens.len().min((self.most - shard.tokens) as usize));
            bytes.clear();
            self.kind.encode(now, &mut bytes);
            shard.file.write_all(&bytes).map_err(|error| failed(&self.partial, &error))?;
            shard.tokens += now.len() as u64;
            shard.largest = now.iter().copied().fold(shard.largest, u32::max);
            if shard.tokens == self.most {
                self.close()?;
            }
            tokens = later;
        }
        Ok(())
    }

    /// Ends the last file and gives the folder its name. It must not exist yet, or be empty.
    ///
    /// # Errors
    /// What the operating system said; nothing is left behind then.
    pub fn finish(mut self) -> Result<(), DataError> {
        self.close()?;
        let parent = self.folder.parent().unwrap_or(Path::new("/"));
        let sync = |path: &Path| File::open(path)?.sync_all();
        sync(&self.partial)
            .and_then(|()| std::fs::rename(&self.partial, &self.folder))
            .and_then(|()| sync(parent))
            .map_err(|error| failed(&self.folder, &error))
    }

    /// Ends the file under way, if there is one: the header last, then all of it to disk.
    fn close(&mut self) -> Result<(), DataError> {
        let Some(shard) = self.shard.take() else { return Ok(()) };
        let header = header(self.kind, shard.tokens, shard.largest);
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
        file.write_all(&[0; HEADER])?;
        Ok(Shard { file, tokens: 0, largest: 0 })
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        // After `finish` the folder has another name, and there is nothing here.
        let _ = std::fs::remove_dir_all(&self.partial);
    }
}

fn failed(path: &Path, error: &std::io::Error) -> DataError {
    DataError {
        what: format!("{} cannot be written: {error}", path.display()),
        fix: "check the folder's permissions and space, or name another with --output".into(),
    }
}
