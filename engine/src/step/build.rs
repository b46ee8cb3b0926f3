//! A stage put together: what it allocates, and who gets what.

use std::mem::offset_of;
use std::rc::Rc;

use device::ops::{Control, Status};
use device::{Communicator, DType, Device};
use graph_manager::Result;
use parallel::{PipelineGroups, PipelineStage};

use super::{Stage, StepNumbers};
use crate::gradient_sync::{PartialGrads, Reducer};
use crate::graph_options::GraphOptions;
use crate::inputs::Inputs;
use crate::model::{Architecture, StepTensors};
use crate::optimizer::{Optimizer, OptimizerKind, OtherRanks};
use crate::params::{Params, Shard};
use crate::pipeline::Pipeline;
use crate::step_policy::{StepPolicy, StepShape};

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
    /// Weight decay of matrices: decoupled with AdamW, added to the gradient with SGD.
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
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        let rotary = match &architecture.rotary {
            Some(table) => {
                let tensor = device.allocate_tensor(&mut areas, "rotary_table", table.shape(), DType::F32)?;
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
            Some(group) => Some(Reducer::new(device, group, &params, layers, options.grad_reduce)?),
            None => None,
        };
        let reduces = reducer.is_some() || partial.is_some();
        let chunks = layers.chunks.iter().map(|chunk| chunk.start).collect();
        let splits_backward = options.pipeline.zero_bubble;
        let gathers = shard.is_part();
        let shape = StepShape { chunks, splits_backward, reduces, gathers };
        Ok(Stage {
            graphs: StepPolicy::manager(compute.clone(), &options.graphs, shape)?,
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
}
