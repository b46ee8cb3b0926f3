//! A step makes no update if the step's loss or gradient norm is a spike. The device decides, from values that are the
//! same on all ranks.

use device::ops;
use device::{Area, DType, Device, Tensor};
use graph_manager::Result;

use super::group::StepControl;
use crate::step_policy::StepContext;

/// The steps that make no update, as in OLMo-core's `SkipStepOptimizer`; [`ops::SkipStep`] has the exact definition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkipStep {
    /// A loss or gradient norm so many standard deviations above the mean is a spike.
    pub sigma_factor: f32,
    /// The number of steps, at least 2, for mean and deviation.
    pub interval: usize,
}

/// The losses and gradient norms of the last steps, from the oldest to the newest, in a checkpoint's form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepHistory {
    /// Mean losses.
    pub losses: Vec<f32>,
    /// Gradient norms before clipping.
    pub norms: Vec<f32>,
}

/// The test of each step, and the ring of losses and norms that the test reads.
pub(super) struct SpikeTest {
    op: ops::SkipStep,
}

impl SpikeTest {
    /// A test without a history. `loss_sum` is that of all ranks, `(1)`, f32.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        device: &Device,
        areas: &mut Vec<Area>,
        of: SkipStep,
        loss_sum: Tensor,
        control: StepControl,
    ) -> Result<SpikeTest> {
        let history =
            device.allocate_tensor(areas, "losses and norms of the last steps", [2, of.interval], DType::F32)?;
        device.zero(&history)?;
        let StepControl { control, status } = control;
        Ok(SpikeTest { op: ops::SkipStep { loss_sum, history, sigma_factor: of.sigma_factor, control, status } })
    }

    /// Takes back the decision to update, if the step is a spike.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn submit(&self, cx: &StepContext<'_>) -> Result<()> {
        cx.run(self.op.clone())
    }

    /// The history. `recorded` steps were written to it.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn history(&self, device: &Device, recorded: u32) -> device::Result<StepHistory> {
        let interval = self.op.interval();
        let values: Vec<f32> = device.download(&self.op.history)?;
        let (recorded, ring) = (recorded as usize, values.split_at(interval));
        let steps = recorded - recorded.min(interval)..recorded;
        let of = |ring: &[f32]| steps.clone().map(|step| ring[step % interval]).collect();
        Ok(StepHistory { losses: of(ring.0), norms: of(ring.1) })
    }

    /// Sets the history to the newest steps of `history`. Returns how many they are.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn set_history(&self, device: &Device, history: &StepHistory) -> device::Result<u32> {
        let interval = self.op.interval();
        let known = history.losses.len().min(history.norms.len()).min(interval);
        let newest = |values: &[f32]| {
            let mut ring = values[values.len() - known..].to_vec();
            ring.resize(interval, 0.0);
            ring
        };
        device.upload(&self.op.history, &[newest(&history.losses), newest(&history.norms)].concat())?;
        Ok(known as u32)
    }
}
