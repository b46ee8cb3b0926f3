//! Transposed 8-bit copies with a scale for each of their rows.

use super::source::{QuantizeArgs, Source, TILE_COLUMNS, TILE_ROWS, is_e5m2, wide_columns};
use crate::cuda::{Arg, Grid, Queue, args};
use crate::ops::{Fp8Matrix, QuantizeSource};
use crate::{DType, Result};

/// The transposed copy of a stored matrix, in two passes over it: the first is for the scales.
pub(super) fn quantize_columns(source: &QuantizeSource, copy: &Fp8Matrix, queue: &Queue<'_>) -> Result<()> {
    let ((rows, columns), source) = (source.dimensions(), Source::of(source));
    let (scales, vector) = (copy.scale.tensor(), source.vector(None));
    let block = QuantizeArgs {
        columns_out: copy.values.address,
        columns_scale: scales.address,
        partial: queue.scratch,
        columns_e5m2: is_e5m2(Some(copy)),
        wide_columns: wide_columns(rows, copy),
        ..source.block(rows)
    };
    let row_tiles = rows.div_ceil(TILE_ROWS);
    let tiles = Grid::line(row_tiles * columns.div_ceil(TILE_COLUMNS), 256);
    queue.launch_block(&source.kernel("column_magnitudes", vector), tiles, &block)?;
    let [parts, width] = [row_tiles, columns].map(|size| Arg::U32(size as u32));
    let arguments = args! { Arg::Pointer(queue.scratch), parts, width, scales; F32: copy.values.dtype.largest_fp8() };
    queue.launch("column_scales", Grid::line(columns.div_ceil(32), 1024), arguments)?;
    queue.launch_block(&source.kernel("quantize_columns", vector), tiles, &block)
}

/// Scratch for a row of magnitudes for each row of tiles.
pub(super) fn scratch_bytes(rows: usize, columns: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * columns * DType::F32.size()
}
