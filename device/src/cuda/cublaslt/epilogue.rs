//! Epilogues that cuBLASLt does not fuse into its product: `kernels/products/gemm_epilogue.cu`.

use crate::cuda::{Grid, KernelOperation, LoadWidth, Queue, fill, kernel_struct};
use crate::ops::{Activation, ActivationKind, Epilogue, Gemm};
use crate::{DType, Result};

kernel_struct! {
    /// The struct of the same name in `gemm_epilogue.cu`.
    EpilogueArguments {
        u64: out, also, other, count, columns;
        i32: other_is_bf16, vector;
    }
}

/// Applies the epilogue of `op` to the plain product in `op.out`.
///
/// # Errors
/// The driver's.
pub(super) fn run(op: &Gemm, queue: &Queue<'_>) -> Result<()> {
    let (kernel, other, also) = match op.epilogue {
        Epilogue::None => return Ok(()),
        Epilogue::Bias(bias) => ("epilogue_bias", bias, None),
        Epilogue::BiasGelu { bias, pre } => ("epilogue_bias_gelu", bias, Some(pre)),
        Epilogue::GeluBackward { pre, activated: None } => ("epilogue_gelu_backward", pre, None),
        Epilogue::GeluBackward { pre, activated } => ("epilogue_gelu_backward_activated", pre, activated),
    };
    let (count, columns) = (op.out.elements(), op.out.shape.last());
    let load = LoadWidth::of(columns, [op.out, other].into_iter().chain(also));
    let arguments = fill! {
        EpilogueArguments: op.{out}; also, other, count, columns, other_is_bf16: other.dtype == DType::Bf16,
        vector: load == LoadWidth::Vector
    };
    let packs = count / load.values(op.out.dtype);
    let grid = Grid::line(packs.div_ceil(256).min(queue.multiprocessors() * 32), 256);
    queue.launch_block(&format!("{kernel}_{}", op.out.dtype), grid, &arguments)
}

/// The part of an epilogue that cuBLASLt never does: `gelu(pre)`, beside its own GELU gradient.
///
/// # Errors
/// The driver's.
pub(super) fn run_rest(op: &Gemm, queue: &Queue<'_>) -> Result<()> {
    let Epilogue::GeluBackward { pre, activated: Some(output) } = op.epilogue else { return Ok(()) };
    KernelOperation::launch(&Activation { kind: ActivationKind::Gelu, input: pre, output }, queue)
}
