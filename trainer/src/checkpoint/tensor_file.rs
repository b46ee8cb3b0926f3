//! Files of a checkpoint as they are written: hashed, counted and synced.

use std::fs::File;
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use device::Device;
use engine::params::Slab;
use launch::watch::activity::{Activity, Doing};
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

/// The number of a file's slabs that wait to be written while the run waits too.
const WAITING: usize = 1;

/// A file or folder that the operating system refused to write.
pub(super) struct WriteError(pub(super) PathBuf, pub(super) IoError);

/// A safetensors file of one rank: its header, and the slabs that follow it.
pub(super) struct TensorFile<'t> {
    file: CheckpointFile,
    header: Vec<u8>,
    slabs: Vec<(&'t LocalTensor, &'t Slab)>,
}

impl<'t> TensorFile<'t> {
    /// This rank's file of these tensors; `None` if the rank has nothing to write to it.
    pub(super) fn new(of: Tensors, writers: &Writers, all: &'t [LocalTensor]) -> Option<TensorFile<'t>> {
        let (mut end, mut infos, mut slabs) = (0, Vec::new(), Vec::new());
        for (tensor, number, slab) in written(writers, all).filter(|(tensor, ..)| tensor.file == of) {
            let start = end;
            end += slab.elements() * size_of::<f32>();
            let info = TensorInfo { dtype: Dtype::F32, shape: slab.sizes.clone(), data_offsets: (start, end) };
            infos.push((key(tensor, number), info));
            slabs.push((tensor, slab));
        }
        // Hugging Face's readers ask for the library that has this layout.
        let library = [("format".to_string(), "pt".to_string())].into();
        let metadata = Metadata::new(Some(library), infos)
            .unwrap_or_else(|error| unreachable!("offsets follow from shapes: {error}"));
        let text = serde_json::to_vec(&metadata).unwrap_or_else(|error| unreachable!("names are text: {error}"));
        let mut header = (text.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
        header.extend(&text);
        header.resize(header.len().next_multiple_of(8), b' ');
        (!slabs.is_empty()).then(|| TensorFile { file: writers.file(of), header, slabs })
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        let data: usize = self.slabs.iter().map(|(_, slab)| slab.elements() * size_of::<f32>()).sum();
        (self.header.len() + data) as u64
    }

    /// Its two ends: values go in at one, and come out at the other on their way to the disk. With `copies` all values of
    /// the file fit in between; otherwise a few do.
    pub(super) fn channel(&self, copies: bool) -> (SyncSender<Vec<f32>>, FileContent) {
        let (values, received) = sync_channel(if copies { self.slabs.len() } else { WAITING });
        (values, FileContent { file: self.file, header: self.header.clone(), bytes: self.bytes(), values: received })
    }

    /// Reads its values from the device, in order. It ends early if nobody takes them any more.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn read(&self, device: &Device, values: &SyncSender<Vec<f32>>) -> device::Result<()> {
        for (tensor, slab) in &self.slabs {
            if values.send(tensor.values(device, slab)?).is_err() {
                break; // it could not be written; the thread that writes knows why
            }
        }
        Ok(())
    }
}

/// What a file will contain.
pub(super) struct FileContent {
    file: CheckpointFile,
    header: Vec<u8>,
    /// Of the whole file.
    bytes: u64,
    values: Receiver<Vec<f32>>,
}

impl FileContent {
    /// The file's path in this folder.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.file.name())
    }

    /// Writes the file and waits until it is on disk.
    pub(super) fn write(self, folder: &Path, activity: &Activity) -> Result<FileEntry, WriteError> {
        let mut output = Output::create(folder, self.file, activity)?;
        output.write(&self.header)?;
        for values in self.values {
            output.write(bytemuck::cast_slice(&values))?;
        }
        if output.entry.bytes < self.bytes {
            // The device could not be read.
            return Err(WriteError(output.path, ErrorKind::UnexpectedEof.into()));
        }
        output.finish()
    }
}

/// The manifest's entries for the tensors that this rank writes.
pub(super) fn tensor_entries(writers: &Writers, tensors: &[LocalTensor]) -> Vec<TensorEntry> {
    let entry = |(tensor, number, slab): (&LocalTensor, usize, &Slab)| TensorEntry {
        name: tensor.name.clone(),
        file: writers.file(tensor.file).name(),
        key: Some(key(tensor, number)).filter(|key| *key != tensor.name),
        shape: tensor.shape.clone(),
        offset: slab.offset.clone(),
        sizes: slab.sizes.clone(),
    };
    written(writers, tensors).map(entry).collect()
}

/// The slabs that this rank writes, each with its tensor and its number within the tensor.
fn written<'t>(
    writers: &Writers,
    tensors: &'t [LocalTensor],
) -> impl Iterator<Item = (&'t LocalTensor, usize, &'t Slab)> {
    let tensors = tensors.iter().filter(|tensor| writers.writes_tensor(tensor));
    tensors.flat_map(|tensor| tensor.written.iter().enumerate().map(move |(number, slab)| (tensor, number, slab)))
}

/// The name of a slab in its file.
fn key(tensor: &LocalTensor, number: usize) -> String {
    if tensor.written.len() == 1 { tensor.name.clone() } else { format!("{}.{number}", tensor.name) }
}

/// A file being written, and its entry for the manifest.
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
        let file = File::create_new(&path).map_err(|error| WriteError(path.clone(), error))?;
        let entry = FileEntry { name, bytes: 0, sha256: String::new() };
        Ok(Output { path, file, hash: Sha256::new(), entry, activity })
    }

    pub(super) fn write(&mut self, content: &[u8]) -> Result<(), WriteError> {
        for chunk in content.chunks(CHUNK) {
            let before = self.entry.bytes / UNSYNCED;
            self.entry.bytes += chunk.len() as u64;
            let due = self.entry.bytes / UNSYNCED > before;
            let written = self.file.write_all(chunk).and_then(|()| if due { self.file.sync_data() } else { Ok(()) });
            written.map_err(|error| WriteError(self.path.clone(), error))?;
            self.hash.update(chunk);
            self.activity.advance_while(Doing::Writes);
        }
        Ok(())
    }

    /// Waits until the file is on disk.
    pub(super) fn finish(self) -> Result<FileEntry, WriteError> {
        self.file.sync_all().map_err(|error| WriteError(self.path, error))?;
        Ok(FileEntry { sha256: hex(&self.hash.finalize()), ..self.entry })
    }
}
