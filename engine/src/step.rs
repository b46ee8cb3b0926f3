//! One training step, top to bottom. What a rank needs for it is put together in `step/build.rs`.

mod build;

use device::ops::{Control, Fill, Status, WriteControl};
use device::{Area, Device, HostValues, Readback, Staging, Stream, Tensor};
use graph_manager::{CudaGraphManager, Result};
use parallel::Task;

use crate::gradient_sync::{DataParallelSync, SequenceParallelSync};
use crate::inputs::Inputs;
use crate::model::{Chunk, Hidden, Model, StepTensors};
use crate::optimizer::Optimizer;
use crate::params::Params;
use crate::pipeline::Pipeline;
use crate::regions::{Mode, Region};
use crate::step_policy::{StepContext, StepPolicy};
pub use build::{StageGroups, StageOptions};

/// What the host decides for one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// The step, counted from 0.
    pub step: u32,
    /// Microbatches of this step on this rank.
    pub microbatches: usize,
    /// Global number of this rank's first sample.
    pub first_sample: u64,
    /// Learning rate.
    pub learning_rate: f32,
    /// Largest gradient norm; 0 = no clipping.
    pub clip: f32,
}

/// A step whose numbers are on their way to the host.
pub struct PendingMetrics {
    numbers: Readback<u8>,
    loss_count: f64,
}

/// What a step leaves for the host, as it lies in device memory.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct StepNumbers {
    status: Status,
    loss_sum: f32,
}

/// A step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f32,
    /// Whether the update was applied; it is skipped when the gradient is not finite.
    pub applied: bool,
}

/// One rank's share of a training run: a model, its optimizer and the graphs that run them.
///
/// Fields drop in order: graphs before the memory they point into. Communicators outlive all of it.
pub struct Stage {
    graphs: CudaGraphManager<StepPolicy>,
    data_parallel: Option<DataParallelSync>,
    sequence_parallel: Option<SequenceParallelSync>,
    pipeline: Pipeline,
    compute: Stream,
    model: Model,
    optimizer: Optimizer,
    params: Params,
    /// Names of the parameters that only other stages have.
    params_elsewhere: Vec<String>,
    step: StepTensors,
    /// u8, [`StepNumbers`].
    numbers: Tensor,
    inputs: Inputs,
    /// Losses of a microbatch on all ranks.
    losses_per_microbatch: usize,
    _areas: Vec<Area>,
}

impl Stage {
    /// One optimizer step: every microbatch forward and backward in this stage's order, then the update.
    ///
    /// Nothing here waits for the device; the returned numbers are read one step later. Without a batch the step works
    /// on the inputs of the one before.
    ///
    /// # Errors
    /// What the device refused, or a step that differs from the recorded one.
    pub fn train_step(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<PendingMetrics> {
        let loss_count = self.submit(settings, batch)?;
        self.metrics(loss_count)
    }

    /// [`Stage::train_step`] up to where its numbers are asked for: control, inputs and all the work. Returns the number
    /// of losses the step's loss is a mean of.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn submit(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<f64> {
        if let Some(progress) = self.device().progress() {
            self.compute.submit(progress.step(settings.step))?;
        }
        let loss_count = self.begin(settings, batch)?;
        let (graphs, work, optimizer) = self.parts();
        graphs.step(Mode::Train, settings.microbatches, &mut |cx| train(cx, &work, optimizer))?;
        Ok(loss_count)
    }

    /// The mean loss over a step's worth of samples, without dropout, gradients or update.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn evaluate(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<PendingMetrics> {
        let loss_count = self.begin(settings, batch)?;
        let (graphs, work, _) = self.parts();
        graphs.step(Mode::Evaluate, settings.microbatches, &mut |cx| evaluate(cx, &work))?;
        self.metrics(loss_count)
    }

    /// Goes through a training and, if wanted, an evaluation step without running them, so that their memory is known.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record(&mut self, microbatches: usize, evaluates: bool) -> Result<()> {
        let (graphs, work, optimizer) = self.parts();
        graphs.record(Mode::Train, microbatches, &mut |cx| train(cx, &work, optimizer))?;
        if evaluates {
            graphs.record(Mode::Evaluate, microbatches, &mut |cx| evaluate(cx, &work))?;
        }
        Ok(())
    }

    /// Goes through a step without its update and without transfers between stages, for each of these numbers of
    /// microbatches, so that stages have nothing left to load or capture while they wait for each other; see
    /// [`CudaGraphManager::rehearse`]. Evaluation has the first of these numbers. Inputs and what would come from other
    /// stages are zeros.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn rehearse(&mut self, microbatches: &[usize], evaluates: bool) -> Result<()> {
        self.inputs.clear(self.compute.device())?;
        for (at, &microbatches) in microbatches.iter().enumerate() {
            let settings = StepSettings { step: 0, microbatches, first_sample: 0, learning_rate: 0.0, clip: 0.0 };
            self.begin(settings, None)?;
            let (graphs, work, optimizer) = self.parts();
            let work = Work { rehearses: true, ..work };
            graphs.rehearse(Mode::Train, microbatches, &mut |cx| train(cx, &work, optimizer))?;
            if evaluates && at == 0 {
                graphs.rehearse(Mode::Evaluate, microbatches, &mut |cx| evaluate(cx, &work))?;
            }
        }
        Ok(())
    }

    /// What runs a step's regions, and what they work on.
    fn parts(&mut self) -> (&mut CudaGraphManager<StepPolicy>, Work<'_>, &Optimizer) {
        let work = Work {
            model: &self.model,
            step: self.step,
            inputs: &self.inputs,
            params: &self.params,
            sequence_parallel: self.sequence_parallel.as_ref(),
            data_parallel: self.data_parallel.as_ref(),
            pipeline: &self.pipeline,
            rehearses: false,
        };
        (&mut self.graphs, work, &self.optimizer)
    }

    /// Writes the control block and the step's inputs; returns the number of losses the step's loss is a mean of.
    fn begin(&mut self, settings: StepSettings, batch: Option<&HostValues>) -> Result<f64> {
        let loss_count = (self.losses_per_microbatch * settings.microbatches) as f64;
        let value = Control {
            first_sample: settings.first_sample,
            step: settings.step,
            microbatches: settings.microbatches as u32,
            learning_rate: settings.learning_rate,
            clip: settings.clip,
            grad_scale: (1.0 / loss_count) as f32,
            inverse_loss_scale: 1.0,
        };
        self.compute.submit(WriteControl { control: self.step.control, value })?;
        batch.map_or(Ok(()), |batch| self.inputs.fill(&self.compute, batch, settings.microbatches))?;
        Ok(loss_count)
    }

    /// Asks for the numbers of the step submitted last.
    pub fn metrics(&self, loss_count: f64) -> Result<PendingMetrics> {
        Ok(PendingMetrics { numbers: self.compute.read(&self.numbers)?, loss_count })
    }

    /// Whether this stage needs the samples of its steps. Stages between the first and the last of a pipeline do not.
    pub fn needs_batch(&self) -> bool {
        self.inputs.needs_batch()
    }

    /// Page-locked memory for this many batches.
    ///
    /// # Errors
    /// When the system cannot lock that much.
    pub fn staging(&self, batches: usize) -> Result<Staging> {
        Ok(self.device().staging(vec![self.inputs.bytes(); batches])?)
    }

    /// The graphs, to report on.
    pub fn graphs(&mut self) -> &mut CudaGraphManager<StepPolicy> {
        &mut self.graphs
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        self.compute.device()
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The names of the parameters that only other stages have.
    pub fn params_elsewhere(&self) -> &[String] {
        &self.params_elsewhere
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }
}

impl PendingMetrics {
    /// Waits for the step to finish and returns its numbers.
    ///
    /// # Errors
    /// What the device met on the way.
    pub fn wait(self) -> Result<StepResult> {
        let StepNumbers { status, loss_sum } = bytemuck::pod_read_unaligned(&self.numbers.wait()?);
        let loss = f64::from(loss_sum) / self.loss_count;
        Ok(StepResult { loss, grad_norm: status.grad_norm, applied: status.finite == 1 })
    }
}

/// What the regions of a step work on.
struct Work<'s> {
    model: &'s Model,
    step: StepTensors,
    inputs: &'s Inputs,
    params: &'s Params,
    sequence_parallel: Option<&'s SequenceParallelSync>,
    data_parallel: Option<&'s DataParallelSync>,
    pipeline: &'s Pipeline,
    /// Nothing goes to other stages, and nothing is updated.
    rehearses: bool,
}

/// A training step as regions: this is what is recorded, captured and replayed.
fn train(cx: &mut StepContext<'_>, work: &Work<'_>, optimizer: &Optimizer) -> Result<()> {
    let order = work.pipeline.order(cx.microbatches())?;
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(Region::Iteration, (), |cx, ()| {
            cx.region(Region::Begin, (), |cx, ()| work.zero(cx))?;
            work.run(cx, &order)?;
            cx.region(Region::Reduce, (), |cx, ()| {
                work.data_parallel.map_or(Ok(()), |ranks| ranks.finish(cx, &[work.step.loss_sum]))?;
                work.pipeline.sum_shared(cx)?;
                work.pipeline.sum(cx, work.step.loss_sum)
            })
        })?;
        if work.rehearses {
            return Ok(());
        }
        cx.region(Region::Optimizer, (), |cx, ()| {
            optimizer.update(cx)?;
            work.data_parallel.map_or(Ok(()), |ranks| ranks.gather_first(cx))
        })
    })
}

/// An evaluation step as regions.
fn evaluate(cx: &mut StepContext<'_>, work: &Work<'_>) -> Result<()> {
    let mut order = work.pipeline.order(cx.microbatches())?;
    order.retain(|task| matches!(task, Task::Forward { .. }));
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(Region::Iteration, (), |cx, ()| {
            cx.region(Region::Begin, (), |cx, ()| cx.run(Fill { output: work.step.loss_sum, value: 0.0 }))?;
            work.run(cx, &order)?;
            cx.region(Region::Reduce, (), |cx, ()| {
                work.data_parallel.map_or(Ok(()), |ranks| ranks.sum(cx, work.step.loss_sum))?;
                work.pipeline.sum(cx, work.step.loss_sum)
            })
        })
    })
}

impl Work<'_> {
    /// Zeroes the loss and the gradients that are added to: all of them, or with a single microbatch, whose backward
    /// overwrites, only the sparse ones.
    fn zero(&self, cx: &mut StepContext<'_>) -> Result<()> {
        cx.run(Fill { output: self.step.loss_sum, value: 0.0 })?;
        if !cx.variant().overwrites {
            return cx.run(Fill { output: self.params.grads, value: 0.0 });
        }
        for (_, param) in self.params.iter().filter(|(spec, _)| spec.sparse) {
            cx.run(Fill { output: param.grad, value: 0.0 })?;
        }
        Ok(())
    }

    /// All forwards and backwards, whole or in two parts, in this stage's order. Receives for the next task go on beside
    /// each one.
    fn run(&self, cx: &mut StepContext<'_>, order: &[Task]) -> Result<()> {
        let mut transfers = self.pipeline.begin(order, self.rehearses);
        transfers.receive_ahead(cx, 0)?;
        // What the last part of the model makes of a microbatch, for its backward.
        let mut losses = vec![None; cx.microbatches()];
        for (at, &task) in order.iter().enumerate() {
            let (chunk, microbatch) = (&self.model.chunks[task.chunk()], task.microbatch());
            let _span = tracing::debug_span!("microbatch", microbatch).entered();
            match task {
                Task::Forward { .. } => {
                    let hidden = self.inputs.place(cx, &mut transfers, task, chunk.first)?;
                    transfers.receive_ahead(cx, at + 1)?;
                    let hidden = self.forward(cx, chunk, microbatch, hidden)?;
                    // What is no loss yet is overwritten by the next chunk's.
                    losses[microbatch] = Some(hidden.x);
                    transfers.send_activations(cx, task, chunk.last(), &hidden)?;
                }
                Task::Backward { .. } => {
                    let grad = transfers.gradients(cx, task, chunk.last(), losses[microbatch])?;
                    transfers.receive_ahead(cx, at + 1)?;
                    let grad = self.backward(cx, chunk, microbatch, grad)?;
                    transfers.send_gradients(cx, task, chunk.first, grad)?;
                }
                Task::Weights { .. } => {
                    transfers.receive_ahead(cx, at + 1)?;
                    self.weights(cx, chunk, microbatch)?;
                }
            }
        }
        transfers.finish(cx)
    }

    /// Runs a chunk's layers forward. The first microbatch's regions also gather the weights that the next ones need. After
    /// the last layer of the model the result holds the losses.
    fn forward(
        &self,
        cx: &mut StepContext<'_>,
        chunk: &Chunk,
        microbatch: usize,
        mut hidden: Hidden,
    ) -> Result<Hidden> {
        for (layer, module) in (chunk.first..).zip(&chunk.layers) {
            let _span = tracing::debug_span!("layer", layer).entered();
            let region = Region::Forward { layer, microbatch };
            hidden = cx.region(region, hidden, |cx, hidden| {
                let ranks = self.data_parallel.filter(|_| cx.variant().gathers);
                let gathers = ranks.map(|ranks| ranks.gather_next(cx, layer)).transpose()?;
                let hidden = module.forward(cx, hidden)?;
                gathers.map_or(Ok(()), |fork| cx.join(fork))?;
                Ok(hidden)
            })?;
        }
        Ok(hidden)
    }

    /// Runs a chunk's layers backward.
    fn backward(&self, cx: &mut StepContext<'_>, chunk: &Chunk, microbatch: usize, mut grad: Tensor) -> Result<Tensor> {
        for (at, module) in chunk.layers.iter().enumerate().rev() {
            let layer = chunk.first + at;
            let _span = tracing::debug_span!("layer", layer).entered();
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                self.reducing(cx, layer, |cx| module.backward(cx, grad))
            })?;
        }
        Ok(grad)
    }

    /// Makes the gradients of weights that a chunk's layers put off in their backward, in the order of these.
    fn weights(&self, cx: &mut StepContext<'_>, chunk: &Chunk, microbatch: usize) -> Result<()> {
        for layer in (chunk.first..=chunk.last()).rev() {
            let _span = tracing::debug_span!("layer", layer).entered();
            cx.region(Region::WeightGradients { layer, microbatch }, (), |cx, ()| {
                self.reducing(cx, layer, |cx| cx.run_deferred())
            })?;
        }
        Ok(())
    }

    /// Does work on a layer's gradients. Where it completes them, the gradients completed before are reduced beside it.
    fn reducing<T>(
        &self,
        cx: &mut StepContext<'_>,
        layer: usize,
        work: impl FnOnce(&mut StepContext<'_>) -> Result<T>,
    ) -> Result<T> {
        if !cx.variant().reduces {
            return work(cx);
        }
        let reduces = self.data_parallel.map(|ranks| ranks.start(cx, layer)).transpose()?;
        let output = work(cx)?;
        self.sequence_parallel.map_or(Ok(()), |ranks| ranks.sum(cx, layer))?;
        reduces.map_or(Ok(()), |fork| cx.join(fork))?;
        Ok(output)
    }
}
