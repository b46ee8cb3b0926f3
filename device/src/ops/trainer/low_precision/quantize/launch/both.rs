//! Both 8-bit copies in one pass: one with a scale for each row, and a transposed one.

use super::source::{QuantizeArgs, Source, is_e5m2};
use crate::cuda::{GpuProperties, Grid, Queue, fill};
use crate::ops::{Fp8Matrix, Quantize, add_partial};
use crate::{DType, Result};

/// A cluster's share of the rows is a multiple of so many for each group of warps of
/// `kernels/low_precision/quantize_both.cu`.
const SLICE: usize = 16;
/// There are at most rows / 32 + 1 rows of partial sums.
pub(super) const ROWS_OF_SUMS: usize = 32;
/// Columns of a warp.
const COLUMNS: usize = 128;
/// The most warps of a block.
const WARPS: usize = 16;
/// Blocks of a cluster: as many as every GPU with clusters allows, and no number that leaves many multiprocessors without a
/// cluster.
const CLUSTERS: [usize; 4] = [1, 2, 4, 8];
/// The first compute capability with clusters.
const CAPABILITY: (u32, u32) = (9, 0);

/// How a matrix is distributed to blocks.
#[derive(Debug, PartialEq)]
struct Clusters {
    /// Blocks of a cluster. They share rows.
    blocks: usize,
    /// Warps of a block along its columns.
    warps: usize,
    /// Groups of `warps` warps in a block, each for other rows.
    groups: usize,
    /// Bytes of shared memory of a block.
    shared: usize,
}

impl Clusters {
    /// The smallest cluster with two groups of warps in a block, or else the smallest one with one group. `None` if the
    /// rows are too long.
    fn of(source: &Source, outputs: usize, rows: usize, input_bytes: usize, shared_bytes: usize) -> Option<Clusters> {
        let along = source.width.div_ceil(COLUMNS);
        // As `Sizes` of the kernel.
        let piece = 64 / outputs;
        let inputs = source.loads * SLICE / outputs * COLUMNS * input_bytes;
        let sizes = |groups| CLUSTERS.map(|blocks| (groups, blocks, along.div_ceil(blocks)));
        [2, 1].into_iter().flat_map(sizes).find_map(|(groups, blocks, warps)| {
            let peaks = (3 * groups + warps * groups) * SLICE / outputs * DType::F32.size();
            let shared = warps * (groups * inputs + outputs * COLUMNS * piece) + peaks;
            // Each thread has as many values whatever the number of outputs: two outputs need a step for 8 rows.
            let fits = groups * warps <= WARPS && (blocks - 1) * warps < along && shared <= shared_bytes;
            let whole = groups == 1 || outputs == 1 && rows.is_multiple_of(2 * SLICE);
            (fits && whole).then_some(Clusters { blocks, warps, groups, shared })
        })
    }
}

/// Makes everything that is asked for in one pass, with the row copy `rows` and the transposed copy `columns`. `None` if the
/// GPU has no clusters, or the sizes and addresses are not those of whole packs.
pub(super) fn quantize_both(
    op: &Quantize,
    rows: &Fp8Matrix,
    columns: &Fp8Matrix,
    queue: &Queue<'_>,
) -> Option<Result<()>> {
    let ((height, width), source) = (op.source.dimensions(), Source::of(&op.source));
    let GpuProperties { capability, shared_bytes, .. } = *queue.gpu();
    let whole = height.is_multiple_of(SLICE) && columns.values.address.is_multiple_of(16);
    if capability < CAPABILITY || !whole || !source.vector(Some(rows)) || height * width == 0 {
        return None;
    }
    let outputs = width / source.width;
    // Some shared memory is the kernel's own.
    let shared_bytes = (shared_bytes as usize).saturating_sub(64);
    let clusters = Clusters::of(&source, outputs, height, op.source.dtype().size(), shared_bytes)?;
    let block = fill! {
        QuantizeArgs: op.{amax}, clusters.{groups}; rows_out: rows.values, columns_out: columns.values,
        rows_scale: rows.scale.tensor(), columns_scale: columns.scale.tensor(),
        partial: if op.sums.is_some() { queue.scratch } else { 0 }, rows_e5m2: is_e5m2(Some(rows)),
        columns_e5m2: is_e5m2(Some(columns)); ..source.block(height)
    };
    Some(launch(op, &source.kernel("quantize_both", true), &clusters, &block, queue))
}

/// As many clusters as the GPU has room for at once. They take turns. Their number decides the order of sums, so it is
/// the same on all cards of a model: cards differ in how many multiprocessors can form large clusters, about ten of
/// eleven.
fn clusters_of(multiprocessors: usize, blocks: usize) -> usize {
    let usable = if blocks > 2 { multiprocessors * 10 / 11 } else { multiprocessors };
    (usable / blocks).max(1)
}

fn launch(op: &Quantize, kernel: &str, clusters: &Clusters, block: &QuantizeArgs, queue: &Queue<'_>) -> Result<()> {
    let Clusters { blocks, warps, groups, shared } = *clusters;
    let most = (block.rows as usize).div_ceil(ROWS_OF_SUMS * groups);
    let count = clusters_of(queue.multiprocessors(), blocks).min(most);
    let grid = Grid { shared, cluster: blocks, ..Grid::line(count * blocks, warps * groups * 32) };
    queue.launch_block(kernel, grid, block)?;
    match op.sums {
        Some(sums) => add_partial(count * groups, [sums], op.accumulate, queue),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{ActivationKind, Gate, QuantizeSource};
    use crate::{BufferId, Tensor};

    /// Bytes of shared memory that a block of an H200 may ask for.
    const H200: usize = 227 * 1024;

    fn of(source: QuantizeSource, dtype: DType) -> Option<(usize, usize, usize)> {
        let (rows, columns) = source.dimensions();
        let source = Source::of(&source);
        let clusters = Clusters::of(&source, columns / source.width, rows, dtype.size(), H200)?;
        let Clusters { blocks, warps, groups, shared } = clusters;
        assert!(shared <= H200 && blocks * warps * COLUMNS >= source.width && warps * groups <= WARPS);
        // No block is without columns.
        assert!((blocks - 1) * warps * COLUMNS < source.width, "{clusters:?}");
        Some((blocks, warps, groups))
    }

    #[test]
    fn rows_of_large_models_fit_in_clusters_that_every_gpu_with_clusters_allows() {
        let matrix = |dtype, columns: usize| Tensor {
            address: 0,
            shape: [64, columns].into(),
            dtype,
            buffer: BufferId::NOTHING,
        };
        let stored = |dtype, columns| of(QuantizeSource::Stored(matrix(dtype, columns)), dtype);
        assert_eq!(stored(DType::Bf16, 1024), Some((1, 8, 2)));
        assert_eq!(stored(DType::Bf16, 2048), Some((2, 8, 2)));
        assert_eq!(stored(DType::Bf16, 2304), Some((4, 5, 2)));
        assert_eq!(stored(DType::Bf16, 6144), Some((8, 6, 2)));
        assert_eq!(stored(DType::Bf16, 8192), Some((8, 8, 2)));
        assert_eq!(stored(DType::F32, 8192), Some((8, 8, 2)));
        assert_eq!(stored(DType::Bf16, 16384), Some((8, 16, 1)));
        assert_eq!(stored(DType::Bf16, 16392), None);
        let kind = ActivationKind::Gelu;
        for width in (8..=14336).step_by(8) {
            let (input, grad_output) = (matrix(DType::Bf16, width), matrix(DType::Bf16, width));
            assert!(of(QuantizeSource::Activation { kind, input }, DType::Bf16).is_some());
            assert!(of(QuantizeSource::ActivationBackward { kind, input, grad_output }, DType::Bf16).is_some());
        }
        let (gate, wide) = (Gate::Silu, matrix(DType::Bf16, 28672));
        assert_eq!(of(QuantizeSource::Glu { gate, input: wide }, DType::Bf16), Some((8, 14, 1)));
        let backward = QuantizeSource::GluBackward { gate, input: wide, grad_output: matrix(DType::Bf16, 14336) };
        assert_eq!(of(backward, DType::Bf16), Some((8, 14, 1)));
    }
}
