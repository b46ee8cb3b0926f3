//! An operation that launches kernels of our own.

use super::{GpuProperties, KernelFile};
use crate::cuda::Queue;
use crate::{Operation, Result};

/// An operation that launches kernels of our own.
pub(crate) trait KernelOperation: Operation {
    /// The files of the operation's kernels.
    const FILES: &'static [KernelFile];

    /// Launches a checked operation on the queue's stream, or records it while that captures.
    ///
    /// # Errors
    /// The driver's.
    fn launch(&self, queue: &Queue<'_>) -> Result<()>;

    /// Bytes of scratch memory that the kernels need while they run. Known before anything is allocated.
    fn scratch_bytes(&self, _gpu: &GpuProperties) -> usize {
        0
    }

    /// Fails if the kernels do not take the operation's sizes, or do not run on the GPU.
    ///
    /// # Errors
    /// An operation with the numbers or the GPU.
    fn fits(&self, _gpu: &GpuProperties) -> Result<()> {
        Ok(())
    }
}
