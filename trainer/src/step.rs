//! One training step, top to bottom.

use std::mem::offset_of;
use std::rc::Rc;

use device::ops::{Control, Fill, Status, WriteControl};
use device::{Area, Communicator, DType, Device, Readback, Staging, Stream, Tensor};
use graph_manager::{CudaGraphManager, GraphOptions, Mode, Region, Result, StepContext};
use parallel::{PipelineGroups, PipelineStage, Task};

use crate::buckets::Shard;
pub use crate::inputs::Batch;
use crate::inputs::Inputs;
use crate::model::{Architecture, Chunk, Hidden, Model, StepTensors};
use crate::optimizer::{Optimizer, OptimizerKind, OtherRanks};
use crate::params::Params;
use crate::partial_grads::PartialGrads;
use crate::pipeline::Pipeline;
use crate::reducer::Reducer;

/// How a [`Stage`] is made.
pub struct StageOptions {
    /// Type of weights and activations in layers.
    pub compute: DType,
    /// Seed of the weights.
    pub seed: u64,
    /// Most microbatches of a step.
    pub microbatches: usize,
    /// Samples of a microbatch.
    pub micro_batch_size: usize,
    /// Losses of a sample: its tokens, or 1.
    pub losses_per_sample: usize,
    /// Which optimizer.
    pub optimizer: OptimizerKind,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f32,
    /// Smallest gradient bucket, in bytes.
    pub bucket_bytes: usize,
    /// Each data-parallel rank has the master weights and moments of its part of every bucket alone.
    pub distributed_optimizer: bool,
    /// Type in which gradients are summed over data-parallel ranks: f32 or bf16.
    pub grad_reduce: DType,
    /// Which stage of a pipeline this is.
    pub pipeline: PipelineStage,
    /// How steps are captured.
    pub graphs: GraphOptions,
}

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
    losses: f64,
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
/// Fields drop in order: graphs, then what communicates, then memory.
pub struct Stage {
    graphs: CudaGraphManager,
    reducer: Option<Reducer>,
    partial: Option<PartialGrads>,
    pipeline: Pipeline,
    compute: Stream,
    model: Model,
    optimizer: Optimizer,
    params: Params,
    step: StepTensors,
    /// u8, [`StepNumbers`].
    numbers: Tensor,
    inputs: Inputs,
    /// Losses of a microbatch on all ranks.
    losses_per_microbatch: usize,
    _areas: Vec<Area>,
}

impl Stage {
    /// Allocates weights, gradients, optimizer state and inputs; activations follow with the first step or
    /// [`Stage::record`]. `data_parallel` are the ranks with other parts of the batch, `pipeline` the other stages.
    ///
    /// # Errors
    /// Out of memory, or graph settings that do not go together.
    pub fn new(
        device: &Device,
        architecture: &Architecture,
        options: StageOptions,
        data_parallel: Option<Rc<dyn Communicator>>,
        pipeline: Option<PipelineGroups>,
    ) -> Result<Stage> {
        let compute = device.stream("compute");
        let shard = match &data_parallel {
            Some(group) if options.distributed_optimizer => Shard { rank: group.rank(), ranks: group.size() },
            _ => Shard::whole(),
        };
        let specs = architecture.specs.clone();
        let mut params = Params::new(device, specs, options.compute, options.seed, options.bucket_bytes, shard)?;
        params.elsewhere = architecture.elsewhere.clone();
        let mut areas = Vec::new();
        let mut persistent = |name: &str, shape: device::Shape, dtype: DType| -> Result<Tensor> {
            let area = device.allocate(name, shape.elements() * dtype.size())?;
            let tensor = area.tensor(name, 0, shape, dtype);
            areas.push(area);
            Ok(tensor)
        };
        let control = persistent("control", [size_of::<Control>()].into(), DType::U8)?;
        let rotary = match &architecture.rotary {
            Some(table) => {
                let tensor = persistent("rotary_table", table.shape(), DType::F32)?;
                if !device.is_dry() {
                    device.upload(&tensor, &table.values())?;
                }
                Some(tensor)
            }
            None => None,
        };
        let numbers = device.allocate("step numbers", size_of::<StepNumbers>())?;
        let all_numbers = numbers.tensor("step numbers", 0, [size_of::<StepNumbers>()], DType::U8);
        let part = |offset, size, dtype| numbers.place(all_numbers.buffer, offset, [size], dtype);
        let status = part(offset_of!(StepNumbers, status), size_of::<Status>(), DType::U8);
        let loss_sum = part(offset_of!(StepNumbers, loss_sum), 1, DType::F32);
        let step = StepTensors { control, loss_sum, rotary };
        let model = (architecture.build)(&params, step);
        let layers = &architecture.layers;
        let inputs = Inputs::new(device, &model, layers, control, options.microbatches, options.micro_batch_size)?;
        let pipeline = Pipeline::new(device, options.pipeline, pipeline, model.residual, &params)?;
        let tensor = architecture.tensor.group.clone();
        let partial = PartialGrads::new(tensor.clone(), &params);
        let decay = options.weight_decay;
        let others = OtherRanks {
            data_parallel: data_parallel.clone().filter(|_| shard.is_part()),
            tensor_parallel: tensor,
            pipeline: pipeline.all().cloned(),
        };
        let optimizer = Optimizer::new(device, &params, options.optimizer, decay, control, status, others)?;
        areas.push(numbers);
        let ranks = data_parallel.as_ref().map_or(1, |group| group.size());
        let reducer = match data_parallel {
            Some(group) => {
                let side = device.stream("data parallel");
                Some(Reducer::new(group, side, &params, layers, options.grad_reduce)?)
            }
            None => None,
        };
        let reduces = reducer.is_some() || partial.is_some();
        let chunks = layers.chunks.iter().map(|chunk| chunk.start).collect();
        let splits_backward = options.pipeline.zero_bubble;
        let gathers = shard.is_part();
        let graphs = GraphOptions { chunks, splits_backward, reduces, gathers, ..options.graphs };
        Ok(Stage {
            graphs: CudaGraphManager::new(compute.clone(), graphs)?,
            reducer,
            partial,
            pipeline,
            compute,
            model,
            optimizer,
            params,
            step,
            numbers: all_numbers,
            inputs,
            losses_per_microbatch: options.micro_batch_size * options.losses_per_sample * ranks,
            _areas: areas,
        })
    }

    /// One optimizer step: every microbatch forward and backward in this stage's order, then the update.
    ///
    /// Nothing here waits for the device; the returned numbers are read one step later. Without a batch the step works
    /// on the inputs of the one before.
    ///
    /// # Errors
    /// What the device refused, or a step that differs from the recorded one.
    pub fn train_step(&mut self, settings: StepSettings, batch: Option<&Batch>) -> Result<PendingMetrics> {
        let losses = self.submit(settings, batch)?;
        self.metrics(losses)
    }

    /// [`Stage::train_step`] up to where its numbers are asked for: control, inputs and all the work. Returns the number
    /// of losses the step's loss is a mean of.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub(crate) fn submit(&mut self, settings: StepSettings, batch: Option<&Batch>) -> Result<f64> {
        let losses = self.begin(settings, batch)?;
        let (graphs, work, optimizer) = self.parts();
        graphs.step(Mode::Train, settings.microbatches, &mut |cx| train(cx, &work, optimizer))?;
        Ok(losses)
    }

    /// The mean loss over a step's worth of samples, without dropout, gradients or update.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn evaluate(&mut self, settings: StepSettings, batch: &Batch) -> Result<PendingMetrics> {
        let losses = self.begin(settings, Some(batch))?;
        let (graphs, work, _) = self.parts();
        graphs.step(Mode::Evaluate, settings.microbatches, &mut |cx| evaluate(cx, &work))?;
        self.metrics(losses)
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
    /// [`CudaGraphManager::rehearse`]. Inputs and what would come from other stages are zeros.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn rehearse(&mut self, microbatches: &[usize], evaluates: bool) -> Result<()> {
        self.inputs.clear(self.compute.device())?;
        for &microbatches in microbatches {
            let settings = StepSettings { step: 0, microbatches, first_sample: 0, learning_rate: 0.0, clip: 0.0 };
            self.begin(settings, None)?;
            let (graphs, work, optimizer) = self.parts();
            let work = Work { rehearses: true, ..work };
            graphs.rehearse(Mode::Train, microbatches, &mut |cx| train(cx, &work, optimizer))?;
            if evaluates {
                graphs.rehearse(Mode::Evaluate, microbatches, &mut |cx| evaluate(cx, &work))?;
            }
        }
        Ok(())
    }

    /// What runs a step's regions, and what they work on.
    fn parts(&mut self) -> (&mut CudaGraphManager, Work<'_>, &Optimizer) {
        let work = Work {
            model: &self.model,
            step: self.step,
            inputs: &self.inputs,
            params: &self.params,
            partial: self.partial.as_ref(),
            reducer: self.reducer.as_ref(),
            pipeline: &self.pipeline,
            rehearses: false,
        };
        (&mut self.graphs, work, &self.optimizer)
    }

    /// Writes the control block and the step's inputs; returns the number of losses the step's loss is a mean of.
    fn begin(&mut self, settings: StepSettings, batch: Option<&Batch>) -> Result<f64> {
        let losses = (self.losses_per_microbatch * settings.microbatches) as f64;
        let value = Control {
            first_sample: settings.first_sample,
            step: settings.step,
            microbatches: settings.microbatches as u32,
            learning_rate: settings.learning_rate,
            clip: settings.clip,
            grad_scale: (1.0 / losses) as f32,
            inverse_loss_scale: 1.0,
        };
        if let Some(progress) = self.compute.device().progress() {
            self.compute.submit(progress.step(settings.step))?;
        }
        self.compute.submit(WriteControl { control: self.step.control, value })?;
        batch.map_or(Ok(()), |batch| self.inputs.fill(&self.compute, batch, settings.microbatches))?;
        Ok(losses)
    }

    /// Asks for the numbers of the step submitted last.
    pub(crate) fn metrics(&self, losses: f64) -> Result<PendingMetrics> {
        Ok(PendingMetrics { numbers: self.compute.read(&self.numbers)?, losses })
    }

    /// Page-locked memory for this many batches.
    ///
    /// # Errors
    /// When the system cannot lock that much.
    pub fn staging(&self, batches: usize) -> Result<Staging> {
        Ok(self.compute.device().staging((0..batches).flat_map(|_| self.inputs.bytes()))?)
    }

    /// The graphs, to report on.
    pub fn graphs(&mut self) -> &mut CudaGraphManager {
        &mut self.graphs
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
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
        let loss = f64::from(loss_sum) / self.losses;
        Ok(StepResult { loss, grad_norm: status.grad_norm, applied: status.finite == 1 })
    }
}

/// What the regions of a step work on.
struct Work<'s> {
    model: &'s Model,
    step: StepTensors,
    inputs: &'s Inputs,
    params: &'s Params,
    partial: Option<&'s PartialGrads>,
    reducer: Option<&'s Reducer>,
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
                work.reducer.map_or(Ok(()), |reducer| reducer.finish(cx, &[work.step.loss_sum]))?;
                work.pipeline.sum_shared(cx)?;
                work.pipeline.sum(cx, work.step.loss_sum)
            })
        })?;
        if work.rehearses {
            return Ok(());
        }
        cx.region(Region::Optimizer, (), |cx, ()| {
            optimizer.update(cx)?;
            work.reducer.map_or(Ok(()), |reducer| reducer.gather_first(cx))
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
                work.reducer.map_or(Ok(()), |reducer| reducer.sum(cx, work.step.loss_sum))?;
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
        if cx.accumulate() {
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
                let reducer = self.reducer.filter(|_| cx.is_first_microbatch());
                let started = reducer.map_or(Ok(false), |reducer| reducer.gather_next(cx, layer))?;
                let hidden = module.forward(cx, hidden)?;
                if let Some(reducer) = reducer.filter(|_| started) {
                    reducer.join(cx)?;
                }
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
            cx.region(Region::Weights { layer, microbatch }, (), |cx, ()| {
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
        if !cx.completes_gradients() {
            return work(cx);
        }
        let started = self.reducer.map_or(Ok(false), |reducer| reducer.start(cx, layer))?;
        let output = work(cx)?;
        self.partial.map_or(Ok(()), |partial| partial.sum(cx, layer))?;
        if let Some(reducer) = self.reducer.filter(|_| started) {
            reducer.join(cx)?;
        }
        Ok(output)
    }
}
