//! One training step, top to bottom.

use std::mem::offset_of;
use std::rc::Rc;

use device::ops::{Control, Copy, Fill, Status, WriteControl, WriteSampleRecord};
use device::{Area, Communicator, DType, Device, HostArray, Readback, Staging, Stream, Tensor};
use graph_manager::{CudaGraphManager, GraphOptions, Mode, Region, Result, StepContext};

use crate::buckets::Shard;
use crate::model::{Architecture, Hidden, Model, StepTensors};
use crate::optimizer::{Optimizer, OptimizerKind, OtherRanks};
use crate::params::Params;
use crate::partial_grads::PartialGrads;
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
    /// How steps are captured.
    pub graphs: GraphOptions,
}

/// A step's inputs and targets on the host, `(microbatches, micro batch, ...)` each.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// Token ids; targets are the next tokens, negative where there is none.
    Tokens {
        /// `(microbatches, batch, seq)`.
        inputs: HostArray<i32>,
        /// `(microbatches, batch, seq)`.
        targets: HostArray<i32>,
    },
    /// Rows of a regression.
    Rows {
        /// `(microbatches, batch, features)`.
        inputs: HostArray<f32>,
        /// `(microbatches, batch, outputs)`.
        targets: HostArray<f32>,
    },
}

impl Batch {
    /// The same batch in page-locked memory, where some is free.
    pub fn staged(self, staging: &Staging) -> Batch {
        match self {
            Batch::Tokens { inputs, targets } => {
                Batch::Tokens { inputs: staging.array(inputs), targets: staging.array(targets) }
            }
            Batch::Rows { inputs, targets } => {
                Batch::Rows { inputs: staging.array(inputs), targets: staging.array(targets) }
            }
        }
    }
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
    compute: Stream,
    model: Model,
    optimizer: Optimizer,
    params: Params,
    step: StepTensors,
    /// u8, [`StepNumbers`].
    numbers: Tensor,
    /// `(microbatches, ...)` each.
    inputs: Tensor,
    targets: Tensor,
    /// Losses of a microbatch on all ranks.
    losses_per_microbatch: usize,
    micro_batch_size: usize,
    _areas: Vec<Area>,
}

impl Stage {
    /// Allocates weights, gradients, optimizer state and inputs; activations follow with the first step or
    /// [`Stage::record`].
    ///
    /// # Errors
    /// Out of memory, or graph settings that do not go together.
    pub fn new(
        device: &Device,
        architecture: &Architecture,
        options: StageOptions,
        data_parallel: Option<Rc<dyn Communicator>>,
    ) -> Result<Stage> {
        let compute = device.stream("compute");
        let shard = match &data_parallel {
            Some(group) if options.distributed_optimizer => Shard { rank: group.rank(), ranks: group.size() },
            _ => Shard::whole(),
        };
        let specs = architecture.specs.clone();
        let params = Params::new(device, specs, options.compute, options.seed, options.bucket_bytes, shard)?;
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
        let stacked = |shape: device::Shape| {
            let mut sizes = vec![options.microbatches];
            sizes.extend(shape.sizes());
            device::Shape::new(&sizes)
        };
        let inputs = persistent("inputs", stacked(model.inputs.0), on_host(model.inputs.1))?;
        let targets = persistent("targets", stacked(model.targets.0), on_host(model.targets.1))?;
        let tensor = architecture.tensor.group.clone();
        let partial = PartialGrads::new(tensor.clone(), &params);
        let decay = options.weight_decay;
        let others =
            OtherRanks { data_parallel: data_parallel.clone().filter(|_| shard.is_part()), tensor_parallel: tensor };
        let optimizer = Optimizer::new(device, &params, options.optimizer, decay, control, status, others)?;
        areas.push(numbers);
        let ranks = data_parallel.as_ref().map_or(1, |group| group.size());
        let reducer = data_parallel.map(|group| {
            let side = device.stream("data parallel");
            Reducer::new(group, side, &params)
        });
        let reduces = reducer.is_some() || partial.is_some();
        let graphs = GraphOptions { reduces, gathers: shard.is_part(), ..options.graphs };
        Ok(Stage {
            graphs: CudaGraphManager::new(compute.clone(), graphs)?,
            reducer,
            partial,
            compute,
            model,
            optimizer,
            params,
            step,
            numbers: all_numbers,
            inputs,
            targets,
            losses_per_microbatch: options.micro_batch_size * options.losses_per_sample * ranks,
            micro_batch_size: options.micro_batch_size,
            _areas: areas,
        })
    }

    /// One optimizer step: every microbatch forward and backward, then the update.
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
        let Stage { graphs, model, optimizer, reducer, .. } = self;
        let work = Work {
            model,
            step: self.step,
            inputs: self.inputs,
            targets: self.targets,
            params: &self.params,
            partial: self.partial.as_ref(),
        };
        graphs.step(Mode::Train, settings.microbatches, &mut |cx| {
            let size = self.micro_batch_size;
            train(cx, &work, optimizer, reducer.as_ref(), size)
        })?;
        Ok(losses)
    }

    /// The mean loss over a step's worth of samples, without dropout, gradients or update.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn evaluate(&mut self, settings: StepSettings, batch: &Batch) -> Result<PendingMetrics> {
        let losses = self.begin(settings, Some(batch))?;
        let Stage { graphs, model, reducer, .. } = self;
        let work = Work {
            model,
            step: self.step,
            inputs: self.inputs,
            targets: self.targets,
            params: &self.params,
            partial: self.partial.as_ref(),
        };
        graphs.step(Mode::Evaluate, settings.microbatches, &mut |cx| {
            let size = self.micro_batch_size;
            evaluate(cx, &work, reducer.as_ref(), size)
        })?;
        self.metrics(losses)
    }

    /// Goes through a training and, if wanted, an evaluation step without running them, so that their memory is known.
    ///
    /// # Errors
    /// As [`Stage::train_step`].
    pub fn record(&mut self, microbatches: usize, evaluates: bool) -> Result<()> {
        let Stage { graphs, model, optimizer, reducer, .. } = self;
        let work = Work {
            model,
            step: self.step,
            inputs: self.inputs,
            targets: self.targets,
            params: &self.params,
            partial: self.partial.as_ref(),
        };
        let size = self.micro_batch_size;
        graphs.record(Mode::Train, microbatches, &mut |cx| train(cx, &work, optimizer, reducer.as_ref(), size))?;
        if evaluates {
            graphs.record(Mode::Evaluate, microbatches, &mut |cx| evaluate(cx, &work, reducer.as_ref(), size))?;
        }
        Ok(())
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
        let inputs = self.inputs.narrow(0, settings.microbatches);
        let targets = self.targets.narrow(0, settings.microbatches);
        match batch {
            None => {}
            Some(Batch::Tokens { inputs: tokens, targets: next }) => {
                self.compute.send(&inputs, tokens)?;
                self.compute.send(&targets, next)?;
            }
            Some(Batch::Rows { inputs: rows, targets: wanted }) => {
                self.compute.send(&inputs, rows)?;
                self.compute.send(&targets, wanted)?;
            }
        }
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
        let bytes = [self.inputs.bytes(), self.targets.bytes()];
        Ok(self.compute.device().staging((0..batches).flat_map(|_| bytes))?)
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

/// The type data have on the host: rows come in f32, whatever the layers compute in.
fn on_host(dtype: DType) -> DType {
    if dtype == DType::Bf16 { DType::F32 } else { dtype }
}

/// What the regions of a step work on.
struct Work<'s> {
    model: &'s Model,
    step: StepTensors,
    inputs: Tensor,
    targets: Tensor,
    params: &'s Params,
    partial: Option<&'s PartialGrads>,
}

/// A training step as regions: this is what is recorded, captured and replayed.
fn train(
    cx: &mut StepContext<'_>,
    work: &Work<'_>,
    optimizer: &Optimizer,
    reducer: Option<&Reducer>,
    micro_batch_size: usize,
) -> Result<()> {
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(Region::Iteration, (), |cx, ()| {
            cx.region(Region::Begin, (), |cx, ()| work.zero(cx))?;
            for microbatch in 0..cx.microbatches() {
                let _span = tracing::debug_span!("microbatch", microbatch).entered();
                let hidden = work.forward(cx, microbatch, micro_batch_size, reducer)?;
                work.backward(cx, microbatch, hidden.x, reducer)?;
            }
            cx.region(Region::Reduce, (), |cx, ()| {
                reducer.map_or(Ok(()), |reducer| reducer.finish(cx, &[work.step.loss_sum]))
            })
        })?;
        cx.region(Region::Optimizer, (), |cx, ()| {
            optimizer.update(cx)?;
            reducer.map_or(Ok(()), |reducer| reducer.gather_first(cx))
        })
    })
}

/// An evaluation step as regions.
fn evaluate(
    cx: &mut StepContext<'_>,
    work: &Work<'_>,
    reducer: Option<&Reducer>,
    micro_batch_size: usize,
) -> Result<()> {
    cx.region(Region::Step, (), |cx, ()| {
        cx.region(Region::Iteration, (), |cx, ()| {
            cx.region(Region::Begin, (), |cx, ()| cx.run(Fill { output: work.step.loss_sum, value: 0.0 }))?;
            for microbatch in 0..cx.microbatches() {
                let _span = tracing::debug_span!("microbatch", microbatch).entered();
                work.forward(cx, microbatch, micro_batch_size, reducer)?;
            }
            cx.region(Region::Reduce, (), |cx, ()| {
                reducer.map_or(Ok(()), |reducer| reducer.sum(cx, work.step.loss_sum))
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

    /// Puts a microbatch's inputs where its slot has them, and runs all layers forward. The first microbatch's regions
    /// also gather the weights that the next ones need. The result holds the losses.
    fn forward(
        &self,
        cx: &mut StepContext<'_>,
        microbatch: usize,
        micro_batch_size: usize,
        reducer: Option<&Reducer>,
    ) -> Result<Hidden> {
        let mut hidden = cx.region(Region::Inputs { microbatch }, (), |cx, ()| {
            let x = cx.tensor("inputs", self.model.inputs.0, self.model.inputs.1)?;
            let targets = cx.tensor("targets", self.model.targets.0, self.model.targets.1)?;
            let record = cx.tensor("record", [size_of::<device::ops::SampleRecord>()], DType::U8)?;
            cx.run(Copy { input: self.inputs.at(microbatch), output: x })?;
            cx.run(Copy { input: self.targets.at(microbatch), output: targets })?;
            let offset = (microbatch * micro_batch_size) as u64;
            cx.run(WriteSampleRecord { control: self.step.control, offset, record })?;
            Ok(Hidden { x, delta: None, targets, record })
        })?;
        for (layer, module) in self.model.layers.iter().enumerate() {
            let _span = tracing::debug_span!("layer", layer).entered();
            let region = Region::Forward { layer, microbatch };
            hidden = cx.region(region, hidden, |cx, hidden| {
                let reducer = reducer.filter(|_| cx.is_first_microbatch());
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

    /// Runs all layers backward. The last microbatch's regions also reduce the gradients completed before them.
    fn backward(
        &self,
        cx: &mut StepContext<'_>,
        microbatch: usize,
        losses: Tensor,
        reducer: Option<&Reducer>,
    ) -> Result<()> {
        let mut grad = losses;
        for (layer, module) in self.model.layers.iter().enumerate().rev() {
            let _span = tracing::debug_span!("layer", layer).entered();
            grad = cx.region(Region::Backward { layer, microbatch }, grad, |cx, grad| {
                let reducer = reducer.filter(|_| cx.is_last_microbatch());
                let started = reducer.map_or(Ok(false), |reducer| reducer.start(cx, layer))?;
                let grad = module.backward(cx, grad)?;
                if let Some(partial) = self.partial.filter(|_| cx.is_last_microbatch()) {
                    partial.sum(cx, layer)?;
                }
                if let Some(reducer) = reducer.filter(|_| started) {
                    reducer.join(cx)?;
                }
                Ok(grad)
            })?;
        }
        Ok(())
    }
}
