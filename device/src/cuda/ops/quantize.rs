//! 8-bit copies of matrices, and their scales.

use super::activation::{glu_backward_name, glu_name};
use super::columns::add_partial;
use super::quantize_both::{ROWS_OF_SUMS, quantize_both};
use super::quantize_columns::{self, quantize_columns};
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{ActivationKind, Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
use crate::{DType, Result, Tensor};

/// A tile of `kernels/quantize.cu`.
pub(super) const TILE_ROWS: usize = 128;
pub(super) const TILE_COLUMNS: usize = 64;
/// Values that a thread loads at a time.
pub(super) const PACK: usize = 8;
/// The largest number of threads of a block of `kernels/quantize_rows.cu`.
const ROW_THREADS: usize = 256;

/// `Quantize` of `kernels/quantize.cuh`; 0 is the null pointer.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct QuantizeArgs {
    pub(super) input: u64,
    pub(super) grad: u64,
    pub(super) weight: u64,
    pub(super) bias: u64,
    pub(super) mean: u64,
    pub(super) rstd: u64,
    pub(super) rows_out: u64,
    pub(super) columns_out: u64,
    pub(super) rows_scale: u64,
    pub(super) columns_scale: u64,
    pub(super) amax: u64,
    pub(super) partial: u64,
    pub(super) rows: u32,
    pub(super) width: u32,
    pub(super) rows_e5m2: u32,
    pub(super) columns_e5m2: u32,
    pub(super) same_bytes: u32,
    pub(super) wide_columns: u32,
    pub(super) kept: u32,
    pub(super) bf16_inputs: u32,
    pub(super) groups: u32,
    pub(super) weight_offset: f32,
}

/// The source of the values, as the kernels see it.
pub(super) struct Source {
    /// In the kernels' names.
    name: &'static str,
    input: Tensor,
    grad: Option<Tensor>,
    /// A norm's.
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    mean: Option<Tensor>,
    rstd: Option<Tensor>,
    weight_offset: f32,
    /// Values loaded for each one that a thread walks along.
    pub(super) loads: usize,
    /// The columns that a thread walks along: all, or half of them if it computes a value of each half.
    pub(super) width: usize,
}

impl Source {
    pub(super) fn of(source: &QuantizeSource) -> Source {
        let (_, columns) = source.dimensions();
        let (mut weight, mut bias, mut mean, mut rstd, mut weight_offset) = (None, None, None, None, 0.0);
        let (name, input, grad, loads, width) = match *source {
            QuantizeSource::Stored(input) => ("stored", input, None, 1, columns),
            QuantizeSource::Rounded(input) => ("rounded", input, None, 1, columns),
            QuantizeSource::Norm {
                input,
                mean: means,
                rstd: rstds,
                weight: weights,
                weight_offset: offset,
                bias: biases,
            } => {
                (weight, bias, mean, rstd) = (Some(weights), biases, means, Some(rstds));
                weight_offset = offset;
                ("norm", input, None, 1, columns)
            }
            QuantizeSource::Activation { kind: ActivationKind::Gelu, input } => ("gelu", input, None, 1, columns),
            QuantizeSource::Activation { kind: ActivationKind::Relu, input } => ("relu", input, None, 1, columns),
            QuantizeSource::ActivationBackward { kind, input, grad_output } => {
                let name = match kind {
                    ActivationKind::Gelu => "gelu_backward",
                    ActivationKind::Relu => "relu_backward",
                };
                (name, input, Some(grad_output), 2, columns)
            }
            QuantizeSource::Glu { gate, input } => (glu_name(gate), input, None, 2, columns),
            QuantizeSource::GluBackward { gate, input, grad_output } => {
                (glu_backward_name(gate), input, Some(grad_output), 3, columns / 2)
            }
        };
        Source { name, input, grad, weight, bias, mean, rstd, weight_offset, loads, width }
    }

    /// Whether a thread can load 16 bytes at a time, and store 8 bytes of the copy in its own layout.
    pub(super) fn vector(&self, rows: Option<&Fp8Matrix>) -> bool {
        let aligned = |tensor: Tensor, to: u64| tensor.address.is_multiple_of(to);
        self.width.is_multiple_of(PACK)
            && [Some(self.input), self.grad, self.weight, self.bias].into_iter().flatten().all(|x| aligned(x, 16))
            && rows.is_none_or(|rows| aligned(rows.values, 8))
    }

    /// The kernel's name for this source.
    pub(super) fn kernel(&self, kernel: &str, vector: bool) -> String {
        let path = if vector { self.input.dtype.name() } else { "scalar" };
        format!("{kernel}_{}_{path}", self.name)
    }

    /// The kernels' argument with this source of so many rows, and no output.
    pub(super) fn block(&self, rows: usize) -> QuantizeArgs {
        let address = |tensor: Option<Tensor>| tensor.map_or(0, |tensor| tensor.address);
        QuantizeArgs {
            input: self.input.address,
            grad: address(self.grad),
            weight: address(self.weight),
            bias: address(self.bias),
            mean: address(self.mean),
            rstd: address(self.rstd),
            weight_offset: self.weight_offset,
            rows: rows as u32,
            width: self.width as u32,
            bf16_inputs: (self.input.dtype == DType::Bf16).into(),
            ..bytemuck::Zeroable::zeroed()
        }
    }
}

pub(super) fn is_e5m2(matrix: Option<&Fp8Matrix>) -> u32 {
    matrix.is_some_and(|matrix| matrix.values.dtype == DType::F8E5M2).into()
}

/// Whether the rows of the transposed copy of a matrix of so many rows are stored 16 bytes at a time.
pub(super) fn wide_columns(rows: usize, copy: &Fp8Matrix) -> u32 {
    (rows.is_multiple_of(16) && copy.values.address.is_multiple_of(16)).into()
}

/// Whether two copies hold the same bytes, transposed: one type, and one scale at one address.
fn same_bytes(rows: &Fp8Matrix, columns: &Fp8Matrix) -> bool {
    rows.values.dtype == columns.values.dtype && rows.scale.tensor().address == columns.scale.tensor().address
}

/// See [`Quantize`]. A copy with a scale for each row has kernels of its own that own whole rows. One of them makes a
/// transposed copy too. Everything else is made in one pass over tiles.
pub(super) fn quantize(op: &Quantize, queue: &Queue<'_>) -> Result<()> {
    let (per_row, per_tensor) = match op.rows {
        Some(copy @ Fp8Matrix { scale: Scale::Rows(_), .. }) => (Some(copy), None),
        copy => (None, copy),
    };
    let (mut amax, mut transposed) = (op.amax, op.columns.as_ref());
    if let Some(copy @ Fp8Matrix { scale: Scale::Rows(_), .. }) = transposed {
        quantize_columns(&op.source, copy, queue)?;
        transposed = None;
    }
    if let Some((rows, columns)) = per_row.as_ref().zip(transposed)
        && let Some(done) = quantize_both(op, rows, columns, queue)
    {
        return done;
    }
    if let Some(copy) = &per_row {
        quantize_rows(&op.source, copy, amax.take(), queue)?;
    }
    if per_tensor.is_some() || transposed.is_some() || op.sums.is_some() || amax.is_some() {
        quantize_tiles(op, [per_tensor.as_ref(), transposed], amax, queue)?;
    }
    Ok(())
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
    let grid = Grid {
        blocks: (if source.width == 0 { 0 } else { rows as u32 }, 1, 1),
        threads: threads as u32,
        shared: if kept { row_bytes as u32 } else { 0 },
    };
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

/// Scratch for a row of partial sums for each row of tiles or each cluster.
pub(super) fn scratch_bytes(op: &Quantize) -> usize {
    let (rows, columns) = op.source.dimensions();
    let rows_of_sums = if op.sums.is_some() { rows.div_ceil(TILE_ROWS.min(ROWS_OF_SUMS)) + 1 } else { 0 };
    let sums = rows_of_sums * columns * DType::F32.size();
    match op.columns {
        Some(Fp8Matrix { scale: Scale::Rows(_), .. }) => sums.max(quantize_columns::scratch_bytes(rows, columns)),
        _ => sums,
    }
}

/// Blocks of the kernel that looks for the largest magnitude: enough for every GPU, and few to combine.
const LARGEST_BLOCKS: usize = 1024;

/// See [`MakeScale`].
pub(super) fn make_scale(op: &MakeScale, queue: &Queue<'_>) -> Result<()> {
    let ((rows, _), source) = (op.source.dimensions(), Source::of(&op.source));
    let block = QuantizeArgs {
        rows_scale: op.scale.address,
        partial: queue.scratch,
        kept: op.keep_known.into(),
        ..source.block(rows)
    };
    let blocks = (rows * source.width.div_ceil(PACK)).div_ceil(256).clamp(1, LARGEST_BLOCKS);
    queue.launch_block(&source.kernel("largest", source.vector(None)), Grid::line(blocks, 256), &block)?;
    queue.launch(
        "make_scale",
        Grid::line(1, 32),
        &[
            Arg::Pointer(queue.scratch),
            Arg::U32(blocks as u32),
            op.scale.into(),
            Arg::F32(op.dtype.largest_fp8()),
            Arg::U32(op.keep_known.into()),
        ],
    )
}

/// Scratch for the largest magnitude of each block of [`make_scale`].
pub(super) fn make_scale_scratch_bytes() -> usize {
    LARGEST_BLOCKS * DType::F32.size()
}

/// See [`UpdateScales`]. A block is a tensor.
pub(super) fn update_scales(op: &UpdateScales, queue: &Queue<'_>) -> Result<()> {
    let (tensors, length) = (op.amax.elements(), op.history.shape.last());
    queue.launch(
        "update_scales",
        Grid::line(tensors, length.next_multiple_of(32).clamp(32, 256) as u32),
        &[
            op.amax.into(),
            op.history.into(),
            op.largest.into(),
            op.scale.into(),
            Arg::U32(length as u32),
            Arg::F32(2f32.powi(op.margin)),
            Arg::F32(op.default),
        ],
    )
}
