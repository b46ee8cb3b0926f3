//! Files of a checkpoint as they are written: hashed, counted and synced.

use std::fs::File;
use std::io::{Error as IoError, Write};
use std::path::{Path, PathBuf};

use device::Device;
use engine::params::DenseBlock;
use launch::watch::activity::Activity;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use sha2::{Digest, Sha256};

use super::file::{CheckpointFile, Tensors};
use super::layout::LocalTensor;
use super::manifest::{FileEntry, TensorEntry, hex};
use super::read::CHUNK;
use super::writers::Writers;

/// The largest number of bytes of a file that wait for the disk, so that the last sync is short too.
const UNSYNCED: u64 = 256 << 20;

/// Why a file was not written.
pub(super) enum WriteError {
    /// The operating system refused.
    File(PathBuf, IoError),
    /// The device could not be read.
    Device(device::Error),
}

/// A safetensors file of one rank: its header, and the blocks that follow it.
pub(super) struct TensorFile<'t> {
    file: CheckpointFile,
    header: Vec<u8>,
    blocks: Vec<(&'t LocalTensor, &'t DenseBlock)>,
}

impl<'t> TensorFile<'t> {
    /// This rank's file of these tensors; `None` if the rank has nothing to write to it.
    pub(super) fn new(of: Tensors, writers: &Writers, all: &'t [LocalTensor]) -> Option<TensorFile<'t>> {
        let (mut end, mut infos, mut blocks) = (0, Vec::new(), Vec::new());
        for (tensor, number, block) in written(writers, all).filter(|(tensor, ..)| tensor.file == of) {
            let start = end;
            end += block.elements() * size_of::<f32>();
            let info = TensorInfo { dtype: Dtype::F32, shape: block.sizes.clone(), data_offsets: (start, end) };
            infos.push((key(tensor, number), info));
            blocks.push((tensor, block));
        }
        // Hugging Face's readers ask for the library whose layout this is.
        let library = [("format".to_string(), "pt".to_string())].into();
        let metadata = Metadata::new(Some(library), infos)
            .unwrap_or_else(|error| unreachable!("offsets follow from shapes: {error}"));
        let text = serde_json::to_vec(&metadata).unwrap_or_else(|error| unreachable!("names are text: {error}"));
        let mut header = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
        header.extend(&text);
        header.resize(header.len().next_multiple_of(8), b' ');
        (!blocks.is_empty()).then(|| TensorFile { file: writers.file(of), header, blocks })
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        let data: usize = self.blocks.iter().map(|(_, block)| block.elements() * size_of::<f32>()).sum();
        (self.header.len() + data) as u64
    }

    /// Writes the file and waits until it is on disk.
    pub(super) fn write(&self, folder: &Path, device: &Device, activity: &Activity) -> Result<FileEntry, WriteError> {
        let mut output = Output::create(folder, self.file, activity)?;
        output.write(&self.header)?;
        for (tensor, block) in &self.blocks {
            let values = tensor.values(device, block).map_err(WriteError::Device)?;
            output.write(bytemuck::cast_slice(&values))?;
        }
        output.finish()
    }
}

/// What the manifest says of the tensors that this rank writes.
pub(super) fn tensor_entries(writers: &Writers, tensors: &[LocalTensor]) -> Vec<TensorEntry> {
    let entry = |(tensor, number, block): (&LocalTensor, usize, &DenseBlock)| TensorEntry {
        name: tensor.name.clone(),
        file: writers.file(tensor.file).name(),
        key: Some(key(tensor, number)).filter(|key| *key != tensor.name),
        shape: tensor.shape.clone(),
        offset: block.offset.clone(),
        sizes: block.sizes.clone(),
    };
    written(writers, tensors).map(entry).collect()
}

/// The blocks that this rank writes, each with its tensor and its number within the tensor.
fn written<'t>(
    writers: &Writers,
    tensors: &'t [LocalTensor],
) -> impl Iterator<Item = (&'t LocalTensor, usize, &'t DenseBlock)> {
    let tensors = tensors.iter().filter(|tensor| writers.writes_tensor(tensor));
    tensors.flat_map(|tensor| tensor.written.iter().enumerate().map(move |(number, block)| (tensor, number, block)))
}

/// The name of a block in its file.
fn key(tensor: &LocalTensor, number: usize) -> String {
    if tensor.written.len() == 1 { tensor.name.clone() } else { format!("{}.{number}", tensor.name) }
}

/// A file being written, and what the manifest will say of it.
pub(super) struct Output<'a> {
    path: PathBuf,
    file: File,
    hash: Sha256,
    entry: FileEntry,
    activity: &'a Activity,
}

impl<'a> Output<'a> {
    pub(super) fn create(
        folder: &Path,
        file: CheckpointFile,
        activity: &'a Activity,
    ) -> Result<Output<'a>, WriteError> {
        let name = file.name();
        debug_assert_eq!(CheckpointFile::named(&name), Some(file), "pruning would take it for somebody else's");
        let path = folder.join(&name);
        let file = File::create_new(&path).map_err(|error| WriteError::File(path.clone(), error))?;
        let entry = FileEntry { name, bytes: 0, sha256: String::new() };
        Ok(Output { path, file, hash: Sha256::new(), entry, activity })
    }

    pub(super) fn write(&mut self, content: &[u8]) -> Result<(), WriteError> {
        for chunk in content.chunks(CHUNK) {
            let before = self.entry.bytes / UNSYNCED;
            self.entry.bytes += chunk.len() as u64;
            let due = self.entry.bytes / UNSYNCED > before;
            let written = self.file.write_all(chunk).and_then(|()| if due { self.file.sync_data() } else { Ok(()) });
            written.map_err(|error| WriteError::File(self.path.clone(), error))?;
            self.hash.update(chunk);
            self.activity.advance();
        }
        Ok(())
    }

    /// Waits until the file is on disk.
    pub(super) fn finish(self) -> Result<FileEntry, WriteError> {
        self.file.sync_all().map_err(|error| WriteError::File(self.path, error))?;
        Ok(FileEntry { sha256: hex(&self.hash.finalize()), ..self.entry })
    }
}
