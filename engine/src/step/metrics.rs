//! What a step returns to the host.

use crate::fp8::{Fp8Losses, LossSums};
use device::ops::Status;
use device::{Readback, Stream, Tensor};
use graph_manager::Result;

/// What a step leaves for the host, as it lies in device memory.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct StepNumbers {
    pub(super) status: Status,
    pub(super) loss_sum: f32,
    /// Written by steps that measure.
    pub(super) fp8: LossSums,
}

/// A step whose numbers are on their way to the host.
pub struct PendingMetrics {
    numbers: Readback<u8>,
    /// The number of losses that the step's loss is the mean of.
    losses: usize,
    /// Whether the step measured what 8-bit copies lose.
    measured: bool,
}

/// A step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f32,
    /// Whether the weights were updated. They are not when a gradient is not finite.
    pub applied: bool,
    /// What 8-bit copies lost, if the step measured it.
    pub fp8: Option<Fp8Losses>,
}

impl PendingMetrics {
    /// Begins to read back `numbers`, a [`StepNumbers`], after all work submitted to `stream` so far.
    pub(super) fn read(stream: &Stream, numbers: &Tensor, losses: usize, measured: bool) -> Result<PendingMetrics> {
        Ok(PendingMetrics { numbers: stream.read(numbers)?, losses, measured })
    }

    /// Waits for the step to finish and returns its numbers.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn wait(self) -> Result<StepResult> {
        let StepNumbers { status, loss_sum, fp8 } = bytemuck::pod_read_unaligned(&self.numbers.wait()?);
        let loss = f64::from(loss_sum) / self.losses as f64;
        let fp8 = self.measured.then(|| Fp8Losses::of(fp8));
        Ok(StepResult { loss, grad_norm: status.grad_norm, applied: status.finite == 1, fp8 })
    }
}
