//! Matrix products of each expert's rows on GPUs of compute capability 9.0.

use super::EXPERTS;
use crate::cuda::driver::TensorMap;
use crate::cuda::kernels::Grid;
use crate::cuda::{GpuProperties, Queue};
use crate::ops::{GroupedGemm, GroupedProduct};
use crate::{DType, Result};

/// `GroupedHopper` of `kernels/grouped_hopper.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct GroupedHopperArgs {
    a: TensorMap,
    b: TensorMap,
    out: TensorMap,
    offsets: u64,
    experts: u32,
    height: u32,
    width: u32,
    steps: u32,
    reserved: [u64; 5],
}

/// Rows of a matrix, and columns, are multiples of it: values of a step of a sum.
const STEP: usize = 64;

/// `SHARED_BYTES` of the kernels.
const SHARED: u32 = 28 * 64 * 128 + 128 + (EXPERTS as u32 + 1) * 4;

/// From so many rows an expert, pairs of blocks that share columns were faster, by 4 to 8 %. Below, the last pair of an
/// expert is too often half empty: `bench/results/2026-11-27-experts-h100.md`.
const PAIRED_ROWS: usize = 8192;

/// Whether these kernels do the product.
pub(super) fn is_for(op: &GroupedGemm, gpu: &GpuProperties) -> bool {
    let [rows, n, k] = op.sizes();
    gpu.is_hopper()
        && op.a.dtype == DType::Bf16
        && rows > 0
        && [n, k].iter().all(|size| *size > 0 && size.is_multiple_of(STEP))
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
        GroupedProduct::Forward => "hopper_forward",
        GroupedProduct::InputGradient => "hopper_input_gradient",
        GroupedProduct::WeightGradient if op.accumulate => "hopper_weight_gradient_add",
        GroupedProduct::WeightGradient => "hopper_weight_gradient",
    };
    let (a, b, out, width, steps) = match op.product {
        GroupedProduct::Forward => {
            (TensorMap::matrix(op.a, k)?, TensorMap::matrices(op.b, experts, k)?, TensorMap::ragged(op.out, n)?, n, k)
        }
        GroupedProduct::InputGradient => {
            (TensorMap::matrix(op.a, n)?, TensorMap::matrices(op.b, experts, k)?, TensorMap::ragged(op.out, k)?, k, n)
        }
        GroupedProduct::WeightGradient => {
            (TensorMap::ragged(op.a, n)?, TensorMap::ragged(op.b, k)?, TensorMap::matrices(op.out, experts, k)?, k, 0)
        }
    };
    let block = GroupedHopperArgs {
        a,
        b,
        out,
        offsets: op.offsets.address,
        experts: experts as u32,
        height: n as u32,
        width: width as u32,
        steps: (steps / STEP) as u32,
        reserved: [0; 5],
    };
    // Whole pairs, also where no pairs are.
    let grid = Grid { shared: SHARED, ..Grid::line(queue.multiprocessors() / 2 * 2, 384) };
    if is_paired {
        queue.launch_clusters(&format!("{name}_paired"), grid, 2, &block)
    } else {
        queue.launch_block(name, grid, &block)
    }
}
