//! Operations as launches of our own kernels; each file has its twin in `kernels/`.

mod elementwise;

use super::{Cuda, Queue, StreamHandle};
use crate::{Error, Op, Result};

/// Launches a checked operation on the queue's stream, or records it while that captures.
///
/// # Errors
/// What a library or the driver refused.
pub(crate) fn run(op: &Op, queue: &Queue<'_>) -> Result<()> {
    match op {
        Op::Fill(op) => elementwise::fill(op, queue),
        Op::Collective(op) => {
            let stream = StreamHandle(queue.stream.handle().cast());
            op.communicator.enqueue_all_reduce_sum(&op.tensor, stream)
        }
        other => Err(Error::operation(other.name(), "not on CUDA yet")),
    }
}

/// Bytes of scratch memory the operation needs while it runs; known before anything is allocated.
pub(crate) fn scratch_bytes(op: &Op, _cuda: &Cuda) -> usize {
    match op {
        _ => 0,
    }
}
