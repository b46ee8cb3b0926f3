//! Makes a stage: allocates its memory, and gives each of its parts the tensors that it needs.

use std::rc::Rc;

use device::ops::{Control, Rule};
use device::{Communicator, DType, Device};
use graph_manager::{Error, Result, SideStream};
use parallel::{PipelineGroups, PipelineStage};

use super::Stage;
use super::metrics::StepNumbers;
use super::of_length::{OfLength, check_lengths};
use super::program::StepProgram;
use crate::gradient_sync::{CopiedRowsSync, DataParallelSync, PartialGradientSync};
use crate::graph_options::{GraphOptions, Scope};
use crate::hooks::Hooks;
use crate::inputs::Inputs;
use crate::model::{Architecture, ExpertLoads, StepTensors};
use crate::optimizer::{MomentTypes, Optimizer, OptimizerRanks, ParamGroup, SkipStep, StepControl};
use crate::params::{OptimizerShard, Params};
use crate::passes::{PassName, Timing};
use crate::pipeline::Pipeline;
use crate::step_policy::{StepPolicy, StepShape};

/// How a [`Stage`] is made.
pub struct StageOptions {
    /// Seed of the first weights. `None`: they are 0 until a checkpoint is loaded.
    pub seed: Option<u64>,
    /// The largest number of microbatches in a step.
    pub microbatches: usize,
    /// The parameter groups. All parameters of a group are updated in the same way. Each parameter belongs to the first
    /// group that takes it.
    pub optimizer: Vec<ParamGroup>,
    /// How spikes are recognised. A step with a spike makes no update. `None`: all finite steps make one.
    pub skip_step: Option<SkipStep>,
    /// The types of the optimizer's moments.
    pub moments: MomentTypes,
    /// The smallest gradient bucket, in bytes.
    pub bucket_bytes: usize,
    /// Each data-parallel rank has master weights and optimizer state of its own part of every bucket only.
    pub distributed_optimizer: bool,
    /// The number type of sums of gradients over data-parallel ranks: f32 or bf16.
    pub grad_reduce: DType,
    /// This rank's stage of a pipeline, with the order of its work. If the schedule
    /// [overlaps](parallel::Schedule::overlapping), forwards run next to backwards, to the same bits. With tensor
    /// parallelism that needs [`TensorParallel::aside`](crate::model::TensorParallel::aside).
    pub pipeline: PipelineStage,
    /// How steps are captured.
    pub graphs: GraphOptions,
    /// The user's code in forward.
    pub hooks: Hooks,
    /// Passes that a step does without, to the same bits.
    pub left_out: Vec<PassName>,
    /// Evaluations keep the loss of each target for [`Stage::losses`].
    pub keeps_losses: bool,
}

impl Default for StageOptions {
    /// One microbatch a step on one rank, AdamW with weight decay 0.1 for matrices, graphs per layer.
    fn default() -> StageOptions {
        StageOptions {
            seed: Some(0),
            microbatches: 1,
            optimizer: ParamGroup::decay_matrices(Rule::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8 }, 0.1),
            skip_step: None,
            moments: MomentTypes::default(),
            bucket_bytes: 25 << 20,
            distributed_optimizer: false,
            grad_reduce: DType::F32,
            pipeline: PipelineStage::single(),
            graphs: GraphOptions::default(),
            hooks: Hooks::default(),
            left_out: Vec::new(),
            keeps_losses: false,
        }
    }
}

/// The other ranks of a stage, beside those that share its layers; see
/// [`TensorParallel`](crate::model::TensorParallel). By default there are none.
#[derive(Default)]
pub struct StageGroups {
    /// The ranks with other parts of the batch.
    pub data_parallel: Option<Rc<dyn Communicator>>,
    /// The same ranks over a communicator of their own, for a balance loss over the global batch.
    pub expert_loads: Option<Rc<dyn Communicator>>,
    /// The stages with other layers.
    pub pipeline: Option<PipelineGroups>,
}

impl Stage {
    /// Allocates weights, gradients, optimizer state and inputs. Activations are allocated by the first step, or by
    /// [`Stage::record`].
    ///
    /// # Errors
    /// Out of memory; a parameter that no group takes; settings that do not go together.
    pub fn new(
        device: &Device,
        architecture: &Architecture,
        options: StageOptions,
        groups: StageGroups,
    ) -> Result<Stage> {
        let StageGroups { data_parallel, expert_loads: load_ranks, pipeline } = groups;
        check_aside(&options, architecture)?;
        check_loads(data_parallel.is_some(), load_ranks.is_some(), architecture)?;
        check_lengths(options.keeps_losses, architecture)?;
        let compute = device.stream("compute");
        let shard = optimizer_shard(data_parallel.as_deref().filter(|_| options.distributed_optimizer));
        let params = Params::new(device, architecture.specs.clone(), options.seed, options.bucket_bytes, shard)?;
        let mut areas = Vec::new();
        let control = device.allocate_tensor(&mut areas, "control", [size_of::<Control>()], DType::U8)?;
        let rotary = architecture.rotary.uploaded(device, &mut areas)?;
        let numbers = StepNumbers::allocate(device, &mut areas, architecture)?;
        let losses = numbers.losses.clone();
        let expert_loads = numbers.loads.clone().map(|loads| ExpertLoads { ranks: load_ranks, ..loads });
        let step = StepTensors { control, losses, expert_loads, rotary };
        let model = (architecture.build)(&params, step.clone());
        let layers = &architecture.layers;
        let micro_batch_size = model.inputs.0.sizes()[0];
        let inputs = Inputs::new(device, &model, layers, control, options.microbatches, micro_batch_size)?;
        let kept_losses = (options.keeps_losses && layers.has_last()).then_some([options.microbatches, model.losses]);
        let kept_losses =
            kept_losses.map(|shape| device.allocate_tensor(&mut areas, "losses", shape, DType::F32)).transpose()?;
        let pipeline = Pipeline::new(device, options.pipeline, pipeline, model.residual, &params)?;
        let whole = OfLength { model, inputs, pipeline };
        let shorter = whole.all_shorter(architecture, &params, &step);
        let tensor_parallel = architecture.tensor.group.clone();
        let partial_gradients = PartialGradientSync::new(tensor_parallel.clone(), &params);
        let copied_rows = CopiedRowsSync::new(tensor_parallel.clone(), &params);
        let scale_groups = data_parallel.iter().chain(&tensor_parallel).cloned().collect();
        let optimizer_ranks = OptimizerRanks {
            data_parallel: data_parallel.clone(),
            tensor_parallel,
            pipeline: whole.pipeline.all_stages().cloned(),
        };
        let step_control = StepControl { control, status: numbers.status };
        let mut optimizer =
            Optimizer::new(device, &params, &options.optimizer, options.moments, step_control, optimizer_ranks)?;
        if let Some(skip) = options.skip_step {
            optimizer = optimizer.skipping_spikes(device, skip, numbers.losses.loss())?;
        }
        let ranks = data_parallel.as_ref().map_or(1, |group| group.size());
        let data_parallel = data_parallel
            .map(|group| DataParallelSync::new(device, group, &params, layers, options.grad_reduce))
            .transpose()?;
        let reduces = data_parallel.is_some() || partial_gradients.is_some();
        let graphs = StepPolicy::manager(compute.clone(), &options.graphs, step_shape(architecture, options.hooks))?;
        let layers_are_graphs = graphs.policy().graphs() == Some(Scope::PerLayer);
        let timing = Timing {
            left_out: options.left_out,
            gradients: params.gradient_buffer(),
            splits_backward: options.pipeline.schedule().splits_backward(),
            // Reductions read the gradients of the layer before, and no work goes on past the end of a graph.
            gradients_outlive_layers: architecture.gradients_outlive_layers && !reduces && !layers_are_graphs,
            weights_queue: SideStream::background(device, "weight gradients"),
            tensor_queue: SideStream::new(device, "tensor parallel"),
            buckets_queue: SideStream::new(device, "data parallel"),
            tensor_parallel: architecture.tensor.group.clone(),
            tensor_parallel_aside: architecture.tensor.aside.clone(),
        };
        Ok(Stage {
            graphs,
            measures: false,
            data_ranks: ranks,
            program: StepProgram {
                whole,
                shorter,
                params,
                optimizer,
                data_parallel,
                partial_gradients,
                copied_rows,
                scale_groups,
                control,
                numbers,
                timing,
                kept_losses,
            },
            compute,
            copies: None,
            params_elsewhere: architecture.elsewhere.clone(),
            _areas: areas,
        })
    }
}

/// What the policy of graphs knows of the model.
fn step_shape(architecture: &Architecture, hooks: Hooks) -> StepShape {
    let layers = &architecture.layers;
    StepShape {
        layers: layers.total,
        modules: architecture.modules.clone(),
        recomputes_blocks: layers.recomputed,
        chunks: layers.chunks.iter().map(|chunk| chunk.start).collect(),
        hooks,
    }
}

/// The part of the optimizer's state that this rank has: a share among `ranks`, or all of it.
fn optimizer_shard(ranks: Option<&dyn Communicator>) -> OptimizerShard {
    ranks.map_or_else(OptimizerShard::whole, |ranks| OptimizerShard { rank: ranks.rank(), ranks: ranks.size() })
}

/// Fails if a balance loss is about the loads of several ranks, and these have no communicator for it.
fn check_loads(has_ranks: bool, has_communicator: bool, architecture: &Architecture) -> Result<()> {
    let asks = architecture.experts.as_ref().is_some_and(|experts| experts.balances_globally);
    match asks && has_ranks && !has_communicator {
        true => Err(Error::Usage {
            problem:
                "a balance loss is about the loads of all data-parallel ranks, and they have no communicator for it"
                    .into(),
            fix: "set StageGroups::expert_loads",
        }),
        false => Ok(()),
    }
}

/// Fails if microbatches overlap, and ranks that share layers have one communicator for both.
fn check_aside(options: &StageOptions, architecture: &Architecture) -> Result<()> {
    let tensor = &architecture.tensor;
    if options.pipeline.schedule().overlaps() && tensor.size() > 1 && tensor.aside.is_none() {
        return Err(Error::Usage {
            problem: "microbatches overlap, and their tensor-parallel transfers have one communicator".into(),
            fix: "set TensorParallel::aside",
        });
    }
    Ok(())
}
