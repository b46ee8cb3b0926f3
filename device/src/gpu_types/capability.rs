//! Operations that some GPUs alone can do.

use crate::gpu_types::{FP8_CAPABILITY, GpuProperties};
use crate::{Error, Result};

/// Fails unless the GPU is a Hopper. `what` needs one, `instead` is the fix.
pub(crate) fn accept_on_hopper(op: &'static str, gpu: &GpuProperties, what: &str, instead: &str) -> Result<()> {
    if gpu.is_hopper() {
        return Ok(());
    }
    let (major, minor) = gpu.capability;
    let problem = format!(
        "{what} need compute capability 9.0, as the H100 and the H200 have; {} has {major}.{minor}. Fix: {instead}",
        gpu.name
    );
    Err(Error::operation(op, problem))
}

/// Fails unless the GPU has 8-bit floating types.
pub(crate) fn accept_fp8(op: &'static str, gpu: &GpuProperties) -> Result<()> {
    let (major, minor) = gpu.capability;
    if gpu.capability >= FP8_CAPABILITY {
        return Ok(());
    }
    let problem = format!(
        "8-bit floating types need compute capability 8.9 or newer; {} has {major}.{minor}. Fix: bf16, or a newer GPU",
        gpu.name
    );
    Err(Error::operation(op, problem))
}
