//! 8-bit copies of matrices, and their scales.

mod blocks;
mod both;
mod columns;
pub(in crate::ops::trainer::low_precision) mod source;

use crate::cuda::{Arg, GpuProperties, Grid, KernelFile, KernelOperation, Queue, args, kernel_file};
use crate::ops::{Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales, add_partial};
use crate::{DType, Result, Tensor};
use both::{ROWS_OF_SUMS, quantize_both};
use columns::quantize_columns;
use source::{PACK, QuantizeArgs, Source, TILE_COLUMNS, TILE_ROWS, is_e5m2, wide_columns};

/// The largest number of threads of a block of `kernels/low_precision/quantize_rows.cu`.
const ROW_THREADS: usize = 256;

/// Whether two copies hold the same bytes, transposed: one type, and one scale at one address.
fn same_bytes(rows: &Fp8Matrix, columns: &Fp8Matrix) -> bool {
    rows.values.dtype == columns.values.dtype && rows.scale.tensor().address == columns.scale.tensor().address
}

impl KernelOperation for Quantize {
    const FILES: &'static [KernelFile] = &[
        kernel_file!(Fp8, "low_precision/quantize.cu"),
        kernel_file!(Fp8, "low_precision/quantize_blocks.cu"),
        kernel_file!(Fp8, "low_precision/quantize_both.cu"),
        kernel_file!(Fp8, "low_precision/quantize_columns.cu"),
        kernel_file!(Fp8, "low_precision/quantize_rows.cu"),
    ];

    /// A copy with a scale for each row has kernels of its own that own whole rows. One of them makes a
    /// transposed copy too. Everything else is made in one pass over tiles.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        if blocks::is_for(self) {
            return blocks::quantize(self, queue);
        }
        let (per_row, per_tensor) = match self.rows {
            Some(copy @ Fp8Matrix { scale: Scale::Rows(_), .. }) => (Some(copy), None),
            copy => (None, copy),
        };
        let (mut amax, mut transposed) = (self.amax, self.columns.as_ref());
        if let Some(copy @ Fp8Matrix { scale: Scale::Rows(_), .. }) = transposed {
            quantize_columns(&self.source, copy, queue)?;
            transposed = None;
        }
        if let Some((rows, columns)) = per_row.as_ref().zip(transposed)
            && let Some(done) = quantize_both(self, rows, columns, queue)
        {
            return done;
        }
        if let Some(copy) = &per_row {
            quantize_rows(&self.source, copy, amax.take(), queue)?;
        }
        if per_tensor.is_some() || transposed.is_some() || self.sums.is_some() || amax.is_some() {
            quantize_tiles(self, [per_tensor.as_ref(), transposed], amax, queue)?;
        }
        Ok(())
    }

    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        let (rows, columns) = self.source.dimensions();
        let rows_of_sums = if self.sums.is_some() { rows.div_ceil(TILE_ROWS.min(ROWS_OF_SUMS)) + 1 } else { 0 };
        let sums = rows_of_sums * columns * DType::F32.size();
        match self.columns {
            Some(Fp8Matrix { scale: Scale::Rows(_), .. }) => sums.max(columns::scratch_bytes(rows, columns)),
            _ => sums,
        }
    }
}

fn quantize_rows(source: &QuantizeSource, copy: &Fp8Matrix, amax: Option<Tensor>, queue: &Queue<'_>) -> Result<()> {
    let ((rows, _), dtype, source) = (source.dimensions(), source.dtype(), Source::of(source));
    let (packs, vector) = (source.width.div_ceil(PACK), source.vector(Some(copy)));
    let row_bytes = source.loads * source.width * dtype.size();
    let kept = vector && row_bytes + 1024 <= queue.gpu().shared_bytes as usize;
    let block = QuantizeArgs {
        rows_out: copy.values.address,
        rows_scale: copy.scale.tensor().address,
        amax: amax.map_or(0, |amax| amax.address),
        rows_e5m2: is_e5m2(Some(copy)),
        kept: kept.into(),
        ..source.block(rows)
    };
    // Two packs a thread or more: short rows have small blocks, so that more blocks are under way.
    let threads = (packs.div_ceil(2).next_multiple_of(32)).clamp(32, ROW_THREADS);
    let blocks = if source.width == 0 { 0 } else { rows };
    let grid = Grid { shared: if kept { row_bytes } else { 0 }, ..Grid::line(blocks, threads) };
    queue.launch_block(&source.kernel("quantize_rows", vector), grid, &block)
}

/// Everything but copies with a scale for each row: a copy and a transposed one.
fn quantize_tiles(
    op: &Quantize,
    [copy, transposed]: [Option<&Fp8Matrix>; 2],
    amax: Option<Tensor>,
    queue: &Queue<'_>,
) -> Result<()> {
    let ((rows, _), source) = (op.source.dimensions(), Source::of(&op.source));
    let scale = |matrix: Option<&Fp8Matrix>| matrix.map_or(0, |matrix| matrix.scale.tensor().address);
    let address = |matrix: Option<&Fp8Matrix>| matrix.map_or(0, |matrix| matrix.values.address);
    let block = QuantizeArgs {
        rows_out: address(copy),
        columns_out: address(transposed),
        rows_scale: scale(copy),
        columns_scale: scale(transposed),
        amax: amax.map_or(0, |amax| amax.address),
        partial: if op.sums.is_some() { queue.scratch } else { 0 },
        rows_e5m2: is_e5m2(copy),
        columns_e5m2: is_e5m2(transposed),
        same_bytes: copy.zip(transposed).is_some_and(|(rows, columns)| same_bytes(rows, columns)).into(),
        wide_columns: transposed.map_or(0, |copy| wide_columns(rows, copy)),
        ..source.block(rows)
    };
    let row_tiles = rows.div_ceil(TILE_ROWS);
    let grid = Grid::line(row_tiles * source.width.div_ceil(TILE_COLUMNS), 256);
    queue.launch_block(&source.kernel("quantize", source.vector(copy)), grid, &block)?;
    match op.sums {
        Some(sums) => add_partial(row_tiles, [sums], op.accumulate, queue),
        None => Ok(()),
    }
}

/// Blocks of the kernel that looks for the largest magnitude: enough for every GPU, and few to combine.
const LARGEST_BLOCKS: usize = 1024;

impl KernelOperation for MakeScale {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/scales.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ((rows, _), source) = (self.source.dimensions(), Source::of(&self.source));
        let block = QuantizeArgs {
            rows_scale: self.scale.address,
            partial: queue.scratch,
            kept: self.keep_known.into(),
            ..source.block(rows)
        };
        let blocks = (rows * source.width.div_ceil(PACK)).div_ceil(256).clamp(1, LARGEST_BLOCKS);
        queue.launch_block(&source.kernel("largest", source.vector(None)), Grid::line(blocks, 256), &block)?;
        let arguments = args! {
            Arg::Pointer(queue.scratch), Arg::U32(blocks as u32), self.scale; F32: self.dtype.largest_fp8();
            U32: self.keep_known
        };
        queue.launch("make_scale", Grid::line(1, 32), arguments)
    }

    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        LARGEST_BLOCKS * DType::F32.size()
    }
}

impl KernelOperation for UpdateScales {
    const FILES: &'static [KernelFile] = &[kernel_file!(Fp8, "low_precision/scales.cu")];

    /// A block is a tensor.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (tensors, length) = (self.amax.elements(), self.history.shape.last());
        queue.launch("update_scales", Grid::line(tensors, length.next_multiple_of(32).clamp(32, 256)), args! {
            self.amax, self.history, self.largest, self.scale; U32: length; F32: 2f32.powi(self.margin), self.default
        })
    }
}
