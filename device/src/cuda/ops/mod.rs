//! Operations as launches of our own kernels; each file has its twin in `kernels/`.

mod attention;
mod elementwise;
pub(super) mod gemm_epilogue;

use super::{Cuda, Queue, StreamHandle};
use crate::{Error, Op, Result};

/// Launches a checked operation on the queue's stream, or records it while that captures.
///
/// # Errors
/// What a library or the driver refused.
pub(crate) fn run(op: &Op, queue: &Queue<'_>) -> Result<()> {
    match op {
        Op::Gemm(op) => queue.cuda.cublaslt.run(op, queue),
        Op::Attention(op) => attention::forward(op, queue),
        Op::AttentionBackward(op) => attention::backward(op, queue),
        Op::Fill(op) => elementwise::fill(op, queue),
        Op::Collective(op) => {
            let stream = StreamHandle(queue.stream.handle().cast());
            op.communicator.enqueue_all_reduce_sum(&op.tensor, stream)
        }
        other => Err(Error::operation(other.name(), "not on CUDA yet")),
    }
}

/// Has libraries choose how to do an operation.
///
/// # Errors
/// An operation that a library cannot do.
pub(crate) fn prepare(op: &Op, cuda: &Cuda) -> Result<()> {
    match op {
        Op::Gemm(op) => cuda.cublaslt.prepare(op, cuda),
        // Whether cuDNN does it or we: `scratch_bytes` asks, and so makes the plan.
        _ => Ok(()),
    }
}

/// Bytes of scratch memory the operation needs while it runs; known before anything is allocated.
pub(crate) fn scratch_bytes(op: &Op, cuda: &Cuda) -> usize {
    match op {
        Op::Gemm(_) => cuda.cublaslt.scratch_bytes(),
        Op::Attention(op) => attention::forward_scratch(op, cuda),
        Op::AttentionBackward(op) => attention::backward_scratch(op, cuda),
        _ => 0,
    }
}
