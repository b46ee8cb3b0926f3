//! What cuBLASLt could not do to its own product: `kernels/gemm_epilogue.cu`.

use super::Queue;
use crate::cuda::Grid;
use crate::ops::{Epilogue, Gemm};
use crate::{DType, Result, Tensor};

/// The struct of the same name in `gemm_epilogue.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct EpilogueArguments {
    out: u64,
    pre: u64,
    other: u64,
    count: u64,
    columns: u64,
    other_is_bf16: i32,
    vector: i32,
}

/// Applies the epilogue of `op` to the plain product in `op.out`.
///
/// # Errors
/// The driver's.
pub(in crate::cuda) fn run(op: &Gemm, queue: &Queue<'_>) -> Result<()> {
    let (kernel, other, pre) = match op.epilogue {
        Epilogue::None => return Ok(()),
        Epilogue::Bias(bias) => ("epilogue_bias", bias, None),
        Epilogue::BiasGelu { bias, pre } => ("epilogue_bias_gelu", bias, Some(pre)),
        Epilogue::GeluBackward { pre } => ("epilogue_gelu_backward", pre, None),
    };
    let (count, columns) = (op.out.elements(), op.out.shape.last());
    let aligned = |tensor: &Tensor| tensor.address.is_multiple_of(16);
    let vector = columns.is_multiple_of(4) && [Some(op.out), Some(other), pre].iter().flatten().all(aligned);
    let arguments = EpilogueArguments {
        out: op.out.address,
        pre: pre.map_or(0, |pre| pre.address),
        other: other.address,
        count: count as u64,
        columns: columns as u64,
        other_is_bf16: i32::from(other.dtype == DType::Bf16),
        vector: i32::from(vector),
    };
    let chunks = if vector { count / 4 } else { count };
    let grid = Grid::line(chunks.div_ceil(256).min(queue.multiprocessors() * 32), 256);
    queue.launch_block(&format!("{kernel}_{}", op.out.dtype), grid, &arguments)
}
