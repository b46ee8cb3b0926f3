//! Matrix products of each expert's rows on GPUs of compute capability 9.0.

use super::super::super::kernels::EXPERTS;
use crate::cuda::driver::TensorMap;
use crate::cuda::{GpuProperties, Grid, Queue, fill, kernel_struct};
use crate::ops::{GroupedGemm, GroupedProduct};
use crate::{DType, Result};

kernel_struct! {
    /// `GroupedHopper` of `kernels/experts/grouped_hopper.cu`.
    GroupedHopperArgs {
        TensorMap: a, b, out;
        u64: offsets;
        [u64; 2]: scales;
        u32: experts, height, width, steps;
        [u64; 3]: reserved;
    }
}

/// Bytes of a row that a step of a sum takes.
const STEP: usize = 128;

/// The divisor of all sizes of matrices in bf16.
const MULTIPLE: usize = 64;

/// `SHARED_BYTES` of the kernels.
const SHARED: usize = 28 * 64 * 128 + 128 + (EXPERTS + 1) * 4;

/// From so many rows an expert, pairs of blocks that share columns were faster. Below, the last pair of an
/// expert is too often half empty: `bench/results/2026-11-27-experts-on-one-card.md`.
const PAIRED_ROWS: usize = 4096;

/// Whether the kernels for Hopper do the product. That of a few columns has little to multiply, and the other kernel does
/// it.
pub(super) fn is_for(op: &GroupedGemm, gpu: &GpuProperties) -> bool {
    let [rows, n, k] = op.sizes();
    let fits = |size: usize| size > 0 && (op.scales.is_some() || size.is_multiple_of(MULTIPLE));
    gpu.is_hopper()
        && op.is_plain()
        && (op.a.dtype == DType::Bf16 || op.scales.is_some())
        && rows > 0
        && fits(n)
        && fits(k)
        && [op.a, op.b, op.out].iter().all(|tensor| tensor.address.is_multiple_of(16))
}

/// Launches the kernel.
///
/// # Errors
/// The driver's.
pub(super) fn launch(op: &GroupedGemm, queue: &Queue<'_>) -> Result<()> {
    let ([rows, n, k], experts) = (op.sizes(), op.experts());
    let is_paired = op.product == GroupedProduct::WeightGradient || rows / experts >= PAIRED_ROWS;
    let name = match op.product {
        _ if op.a.dtype == DType::F8E5M2 => "hopper_e5m2",
        _ if op.a.dtype == DType::F8E4M3 => "hopper_e4m3",
        GroupedProduct::Forward => "hopper_forward",
        GroupedProduct::InputGradient => "hopper_input_gradient",
        GroupedProduct::WeightGradient if op.accumulate => "hopper_weight_gradient_add",
        GroupedProduct::WeightGradient => "hopper_weight_gradient",
    };
    // Columns of `a`, and of a result with rows.
    let (inner, width) = if op.product == GroupedProduct::Forward { (k, n) } else { (n, k) };
    let (a, b, out) = match op.product {
        GroupedProduct::WeightGradient => {
            (TensorMap::ragged(op.a, n)?, TensorMap::ragged(op.b, k)?, TensorMap::matrices(op.out, experts, k)?)
        }
        _ => {
            let b = match op.is_transposed() {
                true => TensorMap::side_by_side(op.b, experts, n)?,
                false => TensorMap::matrices(op.b, experts, k)?,
            };
            (TensorMap::matrix(op.a, inner)?, b, TensorMap::ragged(op.out, width)?)
        }
    };
    let block = fill! {
        GroupedHopperArgs: op.{offsets}; a, b, out,
        scales: op.scales.map_or([0; 2], |scales| scales.map(|scale| scale.address)), experts, height: n, width,
        steps: (inner * op.a.dtype.size()).div_ceil(STEP), reserved: [0; 3]
    };
    // Whole pairs, also where no pairs are.
    let grid = Grid { shared: SHARED, ..Grid::line(queue.multiprocessors() / 2 * 2, 384) };
    if is_paired {
        let pairs = Grid { cluster: 2, ..grid };
        queue.launch_block(&format!("{name}_paired"), pairs, &block)
    } else {
        queue.launch_block(name, grid, &block)
    }
}
