//! Sums of columns.

use bytemuck::Zeroable;

use super::shape::LoadWidth;
use crate::cuda::kernels::{Arg, Grid, KernelFile, args, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::gpu_types::GpuProperties;
use crate::ops::{AddPartialColumns, BiasGrad, PartialColumns};
use crate::{DType, Result, Tensor};

/// The number of parts that the rows are split into. It fills the GPU, and each part is large enough for a block.
fn chunks(rows: usize, columns: usize, width: usize, multiprocessors: usize) -> usize {
    let tiles = columns.div_ceil(32 * width).max(1);
    (multiprocessors * 8 / tiles).clamp(1, 65_535).min(rows.div_ceil(64))
}

impl KernelOperation for BiasGrad {
    const FILES: &'static [KernelFile] = &[kernel_file!("columns.cu")];

    /// First the sums of chunks of rows, then their sum, in order.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, columns, dtype) =
            (self.grad_output.shape.rows(), self.grad_output.shape.last(), self.grad_output.dtype);
        let load = LoadWidth::of(columns, [self.grad_output]);
        let chunks = chunks(rows, columns, load.values(dtype), queue.multiprocessors());
        let chunk_rows = rows.div_ceil(chunks.max(1));
        let tiles = columns.div_ceil(32 * load.values(dtype));
        queue.launch(
            &load.kernel("column_sums", dtype),
            Grid { blocks: (tiles as u32, chunks as u32, 1), threads: 256, shared: 0 },
            args! { self.grad_output, Arg::Pointer(queue.scratch); U32: rows, columns, chunk_rows },
        )?;
        add_partial(chunks, [self.grad_bias], self.accumulate, queue)
    }

    fn scratch_bytes(&self, gpu: &GpuProperties) -> usize {
        let (rows, columns) = (self.grad_output.shape.rows(), self.grad_output.shape.last());
        chunks(rows, columns, LoadWidth::Vector.values(self.grad_output.dtype), gpu.multiprocessors as usize)
            * columns
            * DType::F32.size()
    }
}

kernel_struct! {
    /// `PartialColumns` of `kernels/columns.cu`.
    Entry {
        u64: partial, output;
        u32: parts, columns;
    }
}

kernel_struct! {
    /// `PartialSums` of `kernels/columns.cu`.
    Entries {
        [Entry; 16]: sums;
        u32: accumulate, reserved;
    }
}

impl KernelOperation for AddPartialColumns {
    const FILES: &'static [KernelFile] = &[kernel_file!("columns.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let entry = |sum: &PartialColumns| {
            let columns = sum.output.elements();
            let parts = (sum.partial.elements() / columns.max(1)) as u32;
            Entry { partial: sum.partial.address, output: sum.output.address, parts, columns: columns as u32 }
        };
        launch(self.sums.iter().map(entry), self.accumulate, queue)
    }
}

/// `output (+)= sum over the parts`, for each output, all of one size. The parts are `(outputs, parts, columns)`, in
/// scratch.
pub(in crate::cuda::ops) fn add_partial(
    parts: usize,
    outputs: impl IntoIterator<Item = Tensor>,
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    add_partial_at(queue.scratch, parts, outputs, accumulate, queue)
}

/// As [`add_partial`], of parts at another address.
pub(in crate::cuda::ops) fn add_partial_at(
    partial: u64,
    parts: usize,
    outputs: impl IntoIterator<Item = Tensor>,
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    let entry = |(at, output): (usize, Tensor)| {
        let columns = output.elements();
        let partial = partial + (at * parts * columns * DType::F32.size()) as u64;
        Entry { partial, output: output.address, parts: parts as u32, columns: columns as u32 }
    };
    launch(outputs.into_iter().enumerate().map(entry), accumulate, queue)
}

/// Launches the sums of these entries, in tables of the size that the kernel takes.
fn launch(entries: impl Iterator<Item = Entry>, accumulate: bool, queue: &Queue<'_>) -> Result<()> {
    let all: Vec<Entry> = entries.collect();
    let mut table = Entries { accumulate: accumulate.into(), ..Entries::zeroed() };
    for some in all.chunks(table.sums.len()) {
        table.sums[..some.len()].copy_from_slice(some);
        let columns = some.iter().map(|entry| entry.columns).max().unwrap_or(0);
        let blocks = (columns.div_ceil(32), some.len() as u32, 1);
        queue.launch_block("add_partial_columns", Grid { blocks, threads: 1024, shared: 0 }, &table)?;
    }
    Ok(())
}
