//! Sums of columns, whole or from parts that operations left.

mod host;

use bytemuck::Zeroable;
use std::sync::Arc;

use crate::cuda::{
    Arg, GpuProperties, Grid, KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, kernel_struct,
};
use crate::ops::{Accesses, HasTensors, Operation, ensure_dtype, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// Bias gradient: `grad_bias[c] (+)= sum over rows of grad_output[row, c]`.
///
/// Rows are summed in fixed chunks, in f32, so the bits depend on the shape alone.
#[derive(Clone, Debug, PartialEq)]
pub struct BiasGrad {
    /// `(rows, c)`, f32 or bf16.
    pub grad_output: Tensor,
    /// `(c)`, f32.
    pub grad_bias: Tensor,
    /// Add to `grad_bias` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for BiasGrad {
    const NAME: &'static str = "bias_grad";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("grad_output", self.grad_output)])?;
        ensure_values(Self::NAME, "grad_bias", &self.grad_bias, DType::F32, self.grad_output.shape.last())
    }

    tensors! { read grad_output; add[accumulate] grad_bias }
}

/// A sum of columns in parts, and the output for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialColumns {
    /// `(parts, columns)`, f32.
    pub partial: Tensor,
    /// `(columns)`, f32.
    pub output: Tensor,
}

impl HasTensors for PartialColumns {
    tensors! { partial, output }
}

/// `output (+)= sum of partial over its parts`, for each of several sums. Parts are added in a fixed order.
#[derive(Clone, Debug, PartialEq)]
pub struct AddPartialColumns {
    /// The sums.
    pub sums: Arc<[PartialColumns]>,
    /// Add to the outputs instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for AddPartialColumns {
    const NAME: &'static str = "add_partial_columns";

    fn check(&self) -> Result<()> {
        for PartialColumns { partial, output } in self.sums.iter() {
            ensure_dtype(Self::NAME, "partial", partial, DType::F32)?;
            ensure_values(Self::NAME, "output", output, DType::F32, partial.shape.last())?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let outputs = || self.sums.iter().map(|sum| sum.output);
        let base = Accesses::new(self.sums.iter().map(|sum| sum.partial), outputs());
        if self.accumulate { base.reads(outputs()) } else { base }
    }

    tensors! { sums }
}

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
        let arguments = args! { self.grad_output, Arg::Pointer(queue.scratch); U32: rows, columns, chunk_rows };
        queue.launch(&load.kernel("column_sums", dtype), Grid::plane(tiles, chunks, 256), arguments)?;
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
pub(crate) fn add_partial(
    parts: usize,
    outputs: impl IntoIterator<Item = Tensor>,
    accumulate: bool,
    queue: &Queue<'_>,
) -> Result<()> {
    add_partial_at(queue.scratch, parts, outputs, accumulate, queue)
}

/// As [`add_partial`], of parts at another address.
pub(crate) fn add_partial_at(
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

/// Launches the sums of `entries`, in tables of the size that the kernel takes.
fn launch(entries: impl Iterator<Item = Entry>, accumulate: bool, queue: &Queue<'_>) -> Result<()> {
    let all: Vec<Entry> = entries.collect();
    let mut table = Entries { accumulate: accumulate.into(), ..Entries::zeroed() };
    for some in all.chunks(table.sums.len()) {
        table.sums[..some.len()].copy_from_slice(some);
        let columns = some.iter().map(|entry| entry.columns).max().unwrap_or(0);
        let grid = Grid::plane(columns.div_ceil(32) as usize, some.len(), 1024);
        queue.launch_block("add_partial_columns", grid, &table)?;
    }
    Ok(())
}
