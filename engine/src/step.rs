//! One training step of one rank, from top to bottom.
//!
//! [`Stage::train_step`] is the step as the host sees it. [`StepProgram`] in `program.rs` is the step as regions. Its
//! code is recorded; the regions are captured in graphs and replayed. `build.rs` allocates their memory. `settings.rs`
//! has the step's numbers from the host, `metrics.rs` its results, `lengths.rs` the lengths of samples,
//! `first_forwards.rs` what a step on pairs of answers may begin with.
//! `rehearsal.rs` runs steps before the first real one, `verify.rs` compares a step with graphs to one without.
//! `copy_state.rs` copies weights and optimizer state beside a step.

mod build;
mod copy_state;
mod first_forwards;
mod lengths;
mod metrics;
mod program;
mod rehearsal;
mod settings;
mod verify;

use device::ops::WriteControl;
use device::{Area, Device, HostValues, Readback, Staging, Stream, Tensor};
use graph_manager::{CudaGraphManager, Result};
use parallel::Axis;

use crate::batch_sizes::BatchSizes;
use crate::fp8::PendingCounts;
use crate::optimizer::Optimizer;
use crate::params::Params;
use crate::regions::{Mode, Room, StepKind};
use crate::step_policy::StepPolicy;
pub use build::StageOptions;
pub use metrics::{BlockLoad, PendingMetrics, StepResult};
use program::StepProgram;
use settings::GlobalBatch;
pub use settings::StepSettings;

/// One rank's share of a training run: its layers, their optimizer, and the graphs that run them.
///
/// Fields drop in order: graphs before the memory that they use. Communicators outlive all of it.
pub struct Stage {
    graphs: CudaGraphManager<StepPolicy>,
    program: StepProgram,
    compute: Stream,
    /// Copies of the state to the host. Made when first used.
    copies: Option<Stream>,
    /// Names of the parameters that only other stages have.
    params_elsewhere: Vec<String>,
    /// Steps that measure were recorded.
    measures: bool,
    /// The last training step was run again, with more room for the rows of experts.
    ran_again: bool,
    _areas: Vec<Area>,
}

impl Stage {
    /// One optimizer step: every microbatch forward and backward in this stage's order, then the update.
    ///
    /// `batch` is the step's samples, `(microbatches, batch, width)`: see [`SampleRow`](crate::model::SampleRow).
    /// Without one the step trains on the samples of the step before. Stages that [need none](Stage::needs_batch)
    /// ignore it.
    ///
    /// Nothing here waits for the device: wait for the returned metrics one step later. If the model has a
    /// [row budget](crate::model::Experts::row_budget), the step is waited for, and run again if its rows need more room.
    ///
    /// # Errors
    /// Errors of the device, or a step that differs from the recorded one.
    pub fn train_step(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<PendingMetrics> {
        let losses = self.submit(settings, batch)?;
        self.metrics(losses)
    }

    /// As [`Stage::train_step`], to the same bits. The step also counts the values that 8-bit copies lose. The second
    /// result has the counts of each tensor of this rank; `None` without 8-bit weights. Such steps have graphs of their
    /// own. All ranks call it for the same steps.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn measured_step(
        &mut self,
        settings: StepSettings,
        batch: Option<&HostValues>,
    ) -> Result<(PendingMetrics, Option<PendingCounts>)> {
        let losses = self.submit_as(Mode::Measure, settings, batch)?;
        let mut metrics = self.program.numbers.read(&self.compute, losses, Mode::Measure)?;
        metrics.ran_again = self.ran_again;
        let eight = self.params().iter().filter(|(_, param)| param.fp8.is_some());
        let names = eight.map(|(spec, _)| spec.name.clone()).collect();
        let counts = self.params().fp8_counts().map(|counts| counts.read(&self.compute, names)).transpose()?;
        Ok((metrics, counts))
    }

    /// [`Stage::train_step`] without a read of the step's numbers. Returns the number of losses that the step's loss is
    /// the mean of.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn submit(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<usize> {
        self.submit_as(Mode::Train, settings, batch)
    }

    fn submit_as(&mut self, mode: Mode, settings: StepSettings, batch: Option<&HostValues>) -> Result<usize> {
        if let Some(progress) = self.device().progress() {
            self.compute.submit(progress.step(settings.step))?;
        }
        let kind = self.program.kind(mode, settings.length)?;
        let losses = self.write_inputs(settings, batch)?;
        self.run_first_forwards(settings)?;
        let Stage { graphs, program, .. } = self;
        graphs.step(kind, settings.microbatches, &mut |cx| program.train(cx))?;
        self.ran_again = kind.room == Room::Budget && program.numbers.lacked_room(&self.compute)?;
        if self.ran_again {
            // Nothing was updated on any rank, and all of them know it.
            let kind = StepKind { room: Room::Whole, ..kind };
            graphs.step(kind, settings.microbatches, &mut |cx| program.train(cx))?;
        }
        Ok(losses)
    }

    /// The kind of a training step on samples of that length; see [`StepSettings::length`].
    ///
    /// # Errors
    /// A length that the stage was not made for.
    pub fn kind(&self, mode: Mode, length: Option<usize>) -> Result<StepKind> {
        self.program.kind(mode, length)
    }

    /// The mean loss over a step's worth of samples, without dropout, gradients or update. `batch` is as in
    /// [`Stage::train_step`].
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn evaluate(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<PendingMetrics> {
        let kind = self.program.kind(Mode::Evaluate, settings.length)?;
        let losses = self.write_inputs(settings, batch)?;
        self.run_first_forwards(settings)?;
        self.graphs.step(kind, settings.microbatches, &mut |cx| self.program.evaluate(cx))?;
        self.program.numbers.read(&self.compute, losses, Mode::Evaluate)
    }

    /// Begins to read back the losses of this rank's samples in the evaluation of `microbatches` microbatches that was
    /// submitted last: `(microbatches, losses of a microbatch)`. A target without a loss has 0. If samples have pairs of
    /// answers it is the results of a [`PairLoss`](device::ops::PairLoss). `None` on stages
    /// without the head, and unless [`StageOptions::keeps_losses`] is set.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn losses(&self, microbatches: usize) -> Result<Option<Readback<f32>>> {
        self.read_kept(self.program.kept_losses, microbatches)
    }

    /// As [`Stage::losses`], of the forwards that the evaluation began with. `None` if it began with none.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn first_losses(&self, microbatches: usize) -> Result<Option<Readback<f32>>> {
        self.read_kept(self.program.first.and_then(|first| first.results), microbatches)
    }

    fn read_kept(&self, kept: Option<Tensor>, microbatches: usize) -> Result<Option<Readback<f32>>> {
        Ok(kept.map(|kept| self.compute.read(&kept.narrow(0, microbatches))).transpose()?)
    }

    /// Writes the values that differ from step to step to device memory that graphs read: the settings in one small
    /// operation, by value, and the samples in one copy from page-locked memory. Returns the number of losses of the
    /// step.
    fn write_inputs(&self, settings: StepSettings, batch: Option<&HostValues>) -> Result<usize> {
        let StepProgram { control, inputs, .. } = &self.program;
        let (here, ranks) = (self.graphs.policy().sizes(settings.length), self.params().ranks());
        let tokens_per_sample = here.tokens_per_sample * ranks.at(Axis::Context).count;
        let microbatch = BatchSizes { tokens_per_sample, ..here };
        let batch_form = GlobalBatch { ranks: ranks.at(Axis::Data).count, microbatch };
        self.compute.submit(WriteControl { control: *control, value: settings.control(batch_form) })?;
        if let Some(batch) = batch {
            inputs.fill(&self.compute, batch, settings.microbatches)?;
        }
        Ok(settings.losses(batch_form))
    }

    /// Begins to read back the numbers of the training step that was submitted last. `losses` is the number that
    /// [`Stage::submit`] returned.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn metrics(&self, losses: usize) -> Result<PendingMetrics> {
        let mut metrics = self.program.numbers.read(&self.compute, losses, Mode::Train)?;
        metrics.ran_again = self.ran_again;
        Ok(metrics)
    }

    /// Whether this stage reads the samples of a step: the first and the last stage of a pipeline do. If samples are
    /// packed documents, all stages do.
    pub fn needs_batch(&self) -> bool {
        self.program.inputs.needs_batch()
    }

    /// Page-locked memory for this many batches.
    ///
    /// # Errors
    /// When the system cannot lock that much.
    pub fn staging(&self, batches: usize) -> Result<Staging> {
        Ok(self.device().staging(vec![self.program.inputs.bytes(); batches])?)
    }

    /// The graphs, to report on.
    pub fn graphs(&mut self) -> &mut CudaGraphManager<StepPolicy> {
        &mut self.graphs
    }

    /// The device that the stage runs on.
    pub fn device(&self) -> &Device {
        self.compute.device()
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.program.params
    }

    /// Names of the parameters that only other stages have.
    pub fn params_elsewhere(&self) -> &[String] {
        &self.params_elsewhere
    }

    /// Whether [hooks](crate::hooks) that are not capturable run in the steps to come. They do by default.
    pub fn let_hooks_read(&self, read: bool) {
        self.graphs.policy().hooks().let_read(read);
    }

    /// Computes delayed scales from the scales' history, after a history was loaded.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn refresh_scales(&self) -> Result<()> {
        match self.params().delayed_scales() {
            Some(scales) => Ok(self.compute.submit(scales.refresh())?),
            None => Ok(()),
        }
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.program.optimizer
    }
}
