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
    /// Written where training adds a z-loss. It comes after the loss, so that ranks sum both at once.
    pub(super) z_loss_sum: f32,
    /// Written by steps that measure.
    pub(super) fp8: LossSums,
}

/// A step whose numbers are on their way to the host.
pub struct PendingMetrics {
    numbers: Readback<u8>,
    /// The number of losses that the step's loss is the mean of.
    losses: usize,
    extras: Extras,
}

/// Which numbers a step has beside those that every step has.
#[derive(Clone, Copy)]
pub(super) struct Extras {
    /// The z-loss.
    pub(super) z_loss: bool,
    /// What 8-bit copies lost.
    pub(super) fp8: bool,
}

/// A step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Mean z-loss over the global batch, if training adds one; `loss` is without it.
    pub z_loss: Option<f64>,
    /// Gradient norm before clipping.
    pub grad_norm: f32,
    /// Whether the weights were updated. They are not when a gradient is not finite, or when the step is a spike.
    pub applied: bool,
    /// Whether the update was skipped because loss or gradient norm was a spike.
    pub spike: bool,
    /// Updates skipped up to this step, for either reason.
    pub skipped: u32,
    /// What 8-bit copies lost, if the step measured it.
    pub fp8: Option<Fp8Losses>,
}

impl PendingMetrics {
    /// Begins to read back `numbers`, a [`StepNumbers`], after all work submitted to `stream` so far.
    pub(super) fn read(stream: &Stream, numbers: &Tensor, losses: usize, extras: Extras) -> Result<PendingMetrics> {
        Ok(PendingMetrics { numbers: stream.read(numbers)?, losses, extras })
    }

    /// Waits for the step to finish and returns its numbers.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn wait(self) -> Result<StepResult> {
        let StepNumbers { status, loss_sum, z_loss_sum, fp8 } = bytemuck::pod_read_unaligned(&self.numbers.wait()?);
        let mean = |sum: f32| f64::from(sum) / self.losses as f64;
        Ok(StepResult {
            loss: mean(loss_sum),
            z_loss: self.extras.z_loss.then(|| mean(z_loss_sum)),
            grad_norm: status.grad_norm,
            applied: status.applies == 1,
            spike: status.finite == 1 && status.applies == 0,
            skipped: status.skipped + status.spikes,
            fp8: self.extras.fp8.then(|| Fp8Losses::of(fp8)),
        })
    }
}
