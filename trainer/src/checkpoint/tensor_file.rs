//! The tensors of a checkpoint's files, on their way from the device to the disk.

use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use device::ops::join_master;
use device::{DType, Device, Element, HostCopy, Tensor, bf16};
use engine::params::{CodeMemory, Codes, Slab};
use launch::watch::activity::Activity;

use super::file::{CheckpointFile, Tensors};
use super::header::beginning;
use super::layout::{LocalTensor, SlabMemory};
use super::manifest::{FileEntry, TensorEntry};
use super::output::{Content, Output, SaveSeconds, WriteError};
use super::writers::Writers;

/// The number of a file's slabs that wait to be written while the run waits too.
const WAITING: usize = 1;

/// A safetensors file of one rank: its header, and the slabs that follow it.
pub(super) struct TensorFile<'t> {
    file: CheckpointFile,
    header: Vec<u8>,
    slabs: Vec<(&'t LocalTensor, &'t Slab)>,
}

impl<'t> TensorFile<'t> {
    /// This rank's file of the tensors `of`; `None` if the rank has no such tensors to write.
    pub(super) fn new(of: Tensors, writers: &Writers, all: &'t [LocalTensor]) -> Option<TensorFile<'t>> {
        let slabs = || written(all).filter(|(tensor, ..)| tensor.file == of);
        let tensor = |(tensor, number, slab): (&LocalTensor, usize, &Slab)| {
            (key(tensor, number), tensor.data_type(), slab.sizes.clone())
        };
        let header = beginning(slabs().map(tensor));
        let slabs: Vec<_> = slabs().map(|(tensor, _, slab)| (tensor, slab)).collect();
        (!slabs.is_empty()).then(|| TensorFile { file: writers.file(of), header, slabs })
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        let data: usize = self.slabs.iter().map(|(tensor, slab)| bytes_of(tensor, slab)).sum();
        (self.header.len() + data) as u64
    }

    /// The device's memory with the file's values, in order.
    pub(super) fn memory(&self) -> Vec<Tensor> {
        self.slabs.iter().flat_map(|(tensor, slab)| tensor.memory_of(slab).tensors()).collect()
    }

    /// The content, from a copy that has [`TensorFile::memory`].
    pub(super) fn copied(&self, copy: HostCopy) -> FileContent {
        let slabs = self.slabs.iter().map(|(tensor, slab)| tensor.memory_of(slab));
        self.content(Values::Copied(copy, slabs.collect()))
    }

    /// A channel for the file's values on the way to the disk. A few of them fit in.
    pub(super) fn channel(&self) -> (SyncSender<Content>, FileContent) {
        let (values, received) = sync_channel(WAITING);
        (values, self.content(Values::Fed(received)))
    }

    fn content(&self, values: Values) -> FileContent {
        FileContent { file: self.file, header: self.header.clone(), bytes: self.bytes(), values }
    }

    /// Reads the file's values from the device, in order. It ends early if nobody takes them any more.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn read(&self, device: &Device, values: &SyncSender<Content>) -> device::Result<()> {
        for (tensor, slab) in &self.slabs {
            if values.send(content(tensor.memory_of(slab), device)?).is_err() {
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
    values: Values,
}

enum Values {
    /// The slabs, in a copy of the device's memory.
    Copied(HostCopy, Vec<SlabMemory>),
    /// From the run, which waits meanwhile.
    Fed(Receiver<Content>),
}

/// Values of the run on the way from the device to the disk.
struct Downloaded<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for Downloaded<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl FileContent {
    /// The file's path in this folder.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.file.name())
    }

    /// Writes the file and waits until it is on disk.
    pub(super) fn write(self, folder: &Path, activity: &Activity) -> Result<(FileEntry, SaveSeconds), WriteError> {
        let mut output = Output::create(folder, self.file, activity)?;
        output.write(Arc::new(self.header))?;
        match self.values {
            Values::Fed(values) => values.into_iter().try_for_each(|values| output.write(values))?,
            Values::Copied(copy, slabs) => slabs.iter().try_for_each(|slab| match slab {
                SlabMemory::Values(values) => write_copied(&mut output, &copy, values),
                made => write_made(&mut output, &copy, *made),
            })?,
        }
        if output.bytes() < self.bytes {
            // The device could not be read.
            return Err(WriteError(output.path().into(), ErrorKind::UnexpectedEof.into()));
        }
        output.finish()
    }
}

/// Elements that are made at once of what is in memory.
const MADE: usize = 4 << 20;

/// Writes values that are made of what the copy has, part by part.
fn write_made(output: &mut Output<'_>, copy: &HostCopy, slab: SlabMemory) -> Result<(), WriteError> {
    let elements = slab.elements();
    for first in (0..elements).step_by(MADE) {
        let begun = Instant::now();
        let failed = |error| WriteError(output.path().into(), IoError::other(error));
        let content = content(slab.part(first, MADE.min(elements - first)), copy).map_err(failed)?;
        output.seconds.copy += begun.elapsed().as_secs_f64();
        output.write(content)?;
    }
    Ok(())
}

/// A source of tensors.
trait Source {
    /// A tensor's values.
    fn values<T: Element>(&self, tensor: &Tensor) -> device::Result<Vec<T>>;
}

impl Source for Device {
    fn values<T: Element>(&self, tensor: &Tensor) -> device::Result<Vec<T>> {
        self.download(tensor)
    }
}

impl Source for HostCopy {
    fn values<T: Element>(&self, tensor: &Tensor) -> device::Result<Vec<T>> {
        let mut values: Vec<T> = vec![bytemuck::Zeroable::zeroed(); tensor.elements()];
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        for piece in self.pieces(tensor)? {
            let piece = piece?;
            let (here, after) = rest.split_at_mut(piece.as_ref().len());
            here.copy_from_slice(piece.as_ref());
            rest = after;
        }
        Ok(values)
    }
}

/// The values of a slab in the form of a file.
fn content(slab: SlabMemory, source: &impl Source) -> device::Result<Content> {
    Ok(match slab {
        SlabMemory::Values(values) if values.dtype == DType::Bf16 => {
            Arc::new(Downloaded(source.values::<bf16>(&values)?))
        }
        SlabMemory::Values(values) => Arc::new(Downloaded(source.values::<f32>(&values)?)),
        SlabMemory::Remainders { weights, remainders } => {
            let (weights, remainders): (Vec<bf16>, Vec<u16>) = (source.values(&weights)?, source.values(&remainders)?);
            let joined = weights.into_iter().zip(remainders).map(|(weight, rest)| join_master(weight, rest));
            Arc::new(Downloaded(joined.collect::<Vec<f32>>()))
        }
        SlabMemory::Codes { codes: CodeMemory { form, codes, scales }, dtype } => {
            let values = Codes { form, codes: source.values(&codes)?, scales: source.values(&scales)? }.values();
            match dtype {
                DType::Bf16 => Arc::new(Downloaded(values.into_iter().map(bf16::from_f32).collect::<Vec<_>>())),
                _ => Arc::new(Downloaded(values)),
            }
        }
    })
}

/// Writes a tensor from the copy, piece by piece, as each arrives.
fn write_copied(output: &mut Output<'_>, copy: &HostCopy, tensor: &Tensor) -> Result<(), WriteError> {
    let failed = |output: &Output<'_>, error| WriteError(output.path().into(), IoError::other(error));
    let mut pieces = copy.pieces(tensor).map_err(|error| failed(output, error))?;
    loop {
        let begun = Instant::now();
        let Some(piece) = pieces.next() else { return Ok(()) };
        output.seconds.copy += begun.elapsed().as_secs_f64();
        let piece = piece.map_err(|error| failed(output, error))?;
        output.write(Arc::new(piece))?;
    }
}

/// Bytes of a slab's values in a file.
fn bytes_of(tensor: &LocalTensor, slab: &Slab) -> usize {
    slab.elements() * tensor.data_type().size()
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
    written(tensors).map(entry).collect()
}

/// The slabs that this rank writes, each with the tensor and the slab's number within the tensor.
fn written(tensors: &[LocalTensor]) -> impl Iterator<Item = (&LocalTensor, usize, &Slab)> {
    tensors
        .iter()
        .flat_map(|tensor| tensor.written.iter().enumerate().map(move |(number, slab)| (tensor, number, slab)))
}

/// A slab's name in the checkpoint's file.
fn key(tensor: &LocalTensor, number: usize) -> String {
    if tensor.written.len() == 1 { tensor.name.clone() } else { format!("{}.{number}", tensor.name) }
}
