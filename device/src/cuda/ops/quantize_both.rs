//! Both 8-bit copies in one pass: one with a scale for each row, and a transposed one.

use super::columns::add_partial;
use super::quantize::{PACK, QuantizeBlock, Source, is_e5m2};
use crate::cuda::Queue;
use crate::cuda::driver::GpuProperties;
use crate::cuda::kernels::Grid;
use crate::ops::{Fp8Matrix, Quantize};
use crate::{DType, Result};

/// Rows of a cluster of `kernels/quantize_both.cu`. Each gives a row of partial sums.
pub(super) const GROUP: usize = 32;
/// Rows that a thread has at a time.
const QUAD: usize = 4;
/// The most blocks of a cluster that every GPU with clusters allows.
const CLUSTER: usize = 8;
/// The most threads of a block along the columns.
const LANES: usize = 256;
/// The first compute capability with clusters.
const CLUSTERS: (u32, u32) = (9, 0);

/// How a matrix is distributed to blocks.
#[derive(Debug, PartialEq)]
struct Clusters {
    /// Blocks of a cluster, which share rows.
    blocks: usize,
    /// Threads of a block along its columns, and how many times that many threads it has.
    lanes: usize,
    quads: usize,
    /// Steps whose inputs are loaded ahead.
    ahead: usize,
    /// Bytes of shared memory of a block.
    shared: usize,
}

impl Clusters {
    /// The fewest blocks a cluster that fit in shared memory, at best two to a multiprocessor. `None` if the rows are too
    /// long.
    fn of(source: &Source, outputs: usize, input_bytes: usize, shared_bytes: usize) -> Option<Clusters> {
        let packs = source.width.div_ceil(PACK);
        // Two outputs keep so many values in registers that a multiprocessor has one block, which then is a large one.
        let quads = outputs;
        let sizes = (packs.div_ceil(LANES).max(1)..=CLUSTER).flat_map(|blocks| [(blocks, 2), (blocks, 1)]);
        let all: Vec<Clusters> = sizes
            .map(|(blocks, ahead)| {
                let lanes = packs.div_ceil(blocks).next_multiple_of(32);
                let inputs = ahead * QUAD * source.loads * PACK * input_bytes * lanes * quads;
                let words = outputs * GROUP * PACK * lanes;
                let peaks = 2 * QUAD * quads * (blocks * lanes / 32) * DType::F32.size();
                Clusters { blocks, lanes, quads, ahead, shared: inputs + words + peaks }
            })
            .collect();
        // Each block also takes 1 KiB for itself.
        let half = shared_bytes / 2 - 1024;
        let fewest = all.iter().position(|clusters| clusters.shared <= half && outputs == 1);
        let at = fewest.or_else(|| all.iter().position(|clusters| clusters.shared <= shared_bytes))?;
        all.into_iter().nth(at)
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
    let whole = height.is_multiple_of(2 * PACK) && columns.values.address.is_multiple_of(16);
    if capability < CLUSTERS || !whole || !source.vector(Some(rows)) || height * width == 0 {
        return None;
    }
    let outputs = width / source.width;
    let clusters = Clusters::of(&source, outputs, op.source.dtype().size(), shared_bytes as usize)?;
    let block = QuantizeBlock {
        rows_out: rows.values.address,
        columns_out: columns.values.address,
        rows_scale: rows.scale.tensor().address,
        columns_scale: columns.scale.tensor().address,
        amax: op.amax.map_or(0, |amax| amax.address),
        partial: if op.sums.is_some() { queue.scratch } else { 0 },
        rows_e5m2: is_e5m2(Some(rows)),
        columns_e5m2: is_e5m2(Some(columns)),
        lanes: clusters.lanes as u32,
        ahead: clusters.ahead as u32,
        ..source.block(height)
    };
    let groups = height.div_ceil(GROUP);
    let grid = Grid {
        shared: clusters.shared as u32,
        ..Grid::line(groups * clusters.blocks, (clusters.lanes * clusters.quads) as u32)
    };
    let launched = queue.launch_clusters(&source.kernel("quantize_both", true), grid, clusters.blocks as u32, &block);
    Some(launched.and_then(|()| match op.sums {
        Some(sums) => add_partial(groups, [Some(sums), None, None], op.accumulate, queue),
        None => Ok(()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{ActivationKind, QuantizeSource};
    use crate::{BufferId, Tensor};

    /// What a block of an H200 may ask for.
    const H200: usize = 227 * 1024;

    fn of(source: QuantizeSource, dtype: DType) -> Option<(usize, usize, usize, usize)> {
        let (_, columns) = source.dimensions();
        let source = Source::of(&source);
        let clusters = Clusters::of(&source, columns / source.width, dtype.size(), H200)?;
        let Clusters { blocks, lanes, quads, ahead, shared } = clusters;
        assert!(shared <= H200 && blocks * lanes * PACK >= source.width && lanes * quads <= 512);
        // No block is without columns.
        assert!((blocks - 1) * lanes * PACK < source.width, "{clusters:?}");
        Some((blocks, lanes, quads, ahead))
    }

    #[test]
    fn rows_of_large_models_fit_in_clusters_that_every_gpu_with_clusters_allows() {
        let matrix =
            |dtype, columns: usize| Tensor { address: 0, shape: [64, columns].into(), dtype, buffer: BufferId(0) };
        let stored = |dtype, columns| of(QuantizeSource::Stored(matrix(dtype, columns)), dtype);
        assert_eq!(stored(DType::Bf16, 1024), Some((1, 128, 1, 2)));
        assert_eq!(stored(DType::Bf16, 2048), Some((1, 256, 1, 2)));
        assert_eq!(stored(DType::Bf16, 2304), Some((2, 160, 1, 2)));
        assert_eq!(stored(DType::Bf16, 16384), Some((8, 256, 1, 2)));
        assert_eq!(stored(DType::Bf16, 16392), None);
        assert!(stored(DType::F32, 16384).is_some());
        let kind = ActivationKind::Gelu;
        for width in (8..=16384).step_by(8) {
            let (input, grad_output) = (matrix(DType::Bf16, width), matrix(DType::Bf16, width));
            assert!(of(QuantizeSource::Activation { kind, input }, DType::Bf16).is_some());
            assert!(of(QuantizeSource::ActivationBackward { kind, input, grad_output }, DType::Bf16).is_some());
        }
        let wide = matrix(DType::Bf16, 28672);
        assert_eq!(of(QuantizeSource::SwiGlu { input: wide }, DType::Bf16), Some((7, 256, 1, 1)));
        let backward = QuantizeSource::SwiGluBackward { input: wide, grad_output: matrix(DType::Bf16, 14336) };
        assert_eq!(of(backward, DType::Bf16), Some((8, 224, 2, 1)));
    }
}
