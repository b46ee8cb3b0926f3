//! How the ranks divide the model, the batch and the optimizer's work.

use common::UserError;
use device::DType;
use engine::layer_partition::Recompute;
use engine::model::ContextTransfers;
use engine::params::{MasterForm, Sharding};
use engine::precision::Precision;
use parallel::{Axes, Axis, Mesh, PipelineStage, Schedule};

use super::{context, layout};
use crate::config::checks::{at_least, require};
use crate::config::optimizers::take_16_bits;
use crate::config::plan::model::ModelPlan;
use crate::config::{
    DataParallelSharding, GradReduce, MomentDtype, ParallelConfig, PipelineSchedule, RecomputeConfig,
    RecomputeGranularity, RunConfig,
};

/// How the ranks divide the work.
#[derive(Clone, Debug)]
pub struct ParallelPlan {
    /// All ranks, and the groups that share layers, have other stages, or share the batch.
    pub mesh: Mesh,
    /// Each pipeline stage's part of the model, and the order of the stage's work.
    pub schedule: Schedule,
    /// Transformer blocks of each of the `stages * chunks` parts of the model. Empty for a model without blocks.
    pub blocks: Vec<usize>,
    /// How the backward pass recomputes whole blocks; `None` without such recomputation.
    pub recompute: Option<Recompute>,
    /// The layers of each chunk whose saved tensors lie on the host until backward.
    pub layers_on_host: usize,
    /// The part of master weights and of the optimizer's state that lies on the host.
    pub state_on_host: StateOnHost,
    /// Whether the first and the last stage share the embedding table.
    pub shares_table: bool,
    /// Whether ranks that share layers also divide the tokens.
    pub sequence_parallel: bool,
    /// What ranks that divide sequences exchange in attention.
    pub context_transfers: ContextTransfers,
    /// What data-parallel ranks divide.
    pub sharding: Sharding,
    /// The type of the sums of gradients over data-parallel ranks.
    pub grad_reduce: DType,
    /// The form of master weights.
    pub master_form: MasterForm,
    /// The type of gradients of the weights of blocks.
    pub block_gradients: DType,
    /// Smallest gradient bucket, bytes.
    pub bucket_bytes: usize,
}

/// The part of the optimizer's state that lies on the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateOnHost {
    /// A share, from 0 to 1.
    Share(f64),
    /// As much as the device has no room for.
    AsNeeded,
}

impl StateOnHost {
    fn of(config: &RunConfig) -> Result<StateOnHost, UserError> {
        match (config.offload.optimizer, config.offload.optimizer_fraction) {
            (_, Some(share)) if !(0.0..=1.0).contains(&share) => Err(UserError::new(
                format!("offload.optimizer_fraction = {share}"),
                "a share of the optimizer's state is a number from 0 to 1",
                "set such a number, or leave it out: then as much leaves as the GPU has no room for",
            )),
            (false, _) => Ok(StateOnHost::Share(0.0)),
            (true, Some(share)) => Ok(StateOnHost::Share(share)),
            (true, None) => Ok(StateOnHost::AsNeeded),
        }
    }

    /// The share, none where the need is not known.
    pub fn share(self) -> f64 {
        match self {
            StateOnHost::Share(share) => share,
            StateOnHost::AsNeeded => 0.0,
        }
    }
}

impl ParallelConfig {
    /// What data-parallel ranks divide.
    pub fn sharding(&self) -> Sharding {
        match self.data_parallel_sharding {
            DataParallelSharding::Auto if self.distributed_optimizer => Sharding::State,
            DataParallelSharding::Auto | DataParallelSharding::NoShard => Sharding::Nothing,
            DataParallelSharding::Optim => Sharding::State,
            DataParallelSharding::OptimGrads => Sharding::Gradients,
            DataParallelSharding::OptimGradsParams => Sharding::Weights,
        }
    }
}

/// What data-parallel ranks divide, if all other settings allow that.
fn checked_sharding(config: &RunConfig) -> Result<Sharding, UserError> {
    let (parallel, sharding) = (&config.parallel, config.parallel.sharding());
    require(!parallel.distributed_optimizer || sharding > Sharding::Nothing, || {
        UserError::new(
            "parallel.distributed_optimizer = true with parallel.data_parallel_sharding = \"no_shard\"",
            "a distributed optimizer divides its state",
            "leave out one of the two",
        )
    })?;
    require(parallel.optimizer_instances == 1 || sharding > Sharding::Nothing, || {
        UserError::new(
            format!("parallel.optimizer_instances = {}", parallel.optimizer_instances),
            "it counts the groups of data-parallel ranks that divide the optimizer, and none divide it",
            "leave it out, or set parallel.data_parallel_sharding",
        )
    })?;
    if sharding < Sharding::Gradients {
        return Ok(sharding);
    }
    for (excludes, other, rule, fix) in [
        (
            parallel.pipeline_schedule == PipelineSchedule::ZeroBubble,
            "parallel.pipeline_schedule = \"zero_bubble\"",
            "the gradients of a block are summed right after its backward",
            "set parallel.pipeline_schedule = \"1f1b\"",
        ),
        (
            config.cuda_graph.overlap_microbatches,
            "cuda_graph.overlap_microbatches = true",
            "one microbatch at a time uses the buffers of whole weights and gradients",
            "leave out --cuda-graph-overlap-microbatches",
        ),
    ] {
        let what = format!("parallel.data_parallel_sharding = \"{}\" with {other}", parallel.data_parallel_sharding);
        require(!excludes, || UserError::new(what, rule, fix))?;
    }
    Ok(sharding)
}

/// The form of master weights.
fn master_form(config: &RunConfig) -> Result<MasterForm, UserError> {
    if !config.optimizer.store_param_remainders {
        return Ok(MasterForm::Whole);
    }
    let kind = config.optimizer.kind;
    require(take_16_bits(config), || {
        UserError::new(
            format!("optimizer.store_param_remainders = true with optimizer.kind = \"{kind}\""),
            format!("{kind} updates f32 master weights"),
            "set optimizer.kind = \"adamw\", or leave out --store-param-remainders",
        )
    })?;
    Ok(MasterForm::Remainder)
}

/// The type of gradients of the weights of blocks.
fn block_gradients(config: &RunConfig) -> Result<DType, UserError> {
    if config.optimizer.main_grads_dtype == MomentDtype::F32 {
        return Ok(DType::F32);
    }
    for (excludes, other, rule, fix) in [
        (
            config.precision.compute != Precision::Bf16,
            format!("precision.compute = \"{}\"", config.precision.compute),
            "gradients in bf16 are of products in bf16",
            "set precision.compute = \"bf16\", or leave out --main-grads-dtype",
        ),
        (
            !take_16_bits(config),
            format!("optimizer.kind = \"{}\"", config.optimizer.kind),
            "such an update reads f32 gradients",
            "set optimizer.kind = \"adamw\", or leave out --main-grads-dtype",
        ),
        (
            config.model.experts > 0,
            format!("model.experts = {}", config.model.experts),
            "gradients of experts are f32",
            "leave out --main-grads-dtype",
        ),
    ] {
        let error = || UserError::new(format!("optimizer.main_grads_dtype = \"bf16\" with {other}"), rule, fix);
        require(!excludes, error)?;
    }
    Ok(DType::Bf16)
}

impl ParallelPlan {
    /// The plan of a configuration for a model on `mesh`. `microbatch_counts` are the numbers of microbatches that steps can
    /// have, the largest first.
    ///
    /// # Errors
    /// Layers that cannot be divided so, settings that exclude each other.
    pub fn new(
        config: &RunConfig,
        mut mesh: Mesh,
        model: &ModelPlan,
        microbatch_counts: &[usize],
    ) -> Result<ParallelPlan, UserError> {
        let parallel = &config.parallel;
        let (mut blocks, mut shares_table, mut context_transfers) = (Vec::new(), false, ContextTransfers::Keys);
        if let ModelPlan::Gpt(shape) = model {
            layout::check_shape(config, shape)?;
            blocks = layout::blocks(config, shape)?;
            mesh = layout::with_key_heads(mesh, shape)?;
            shares_table = shape.table_is_shared();
            context_transfers = context::transfers(config, shape)?;
        }
        layout::check_schedule(config)?;
        let schedule = layout::schedule(config, microbatch_counts)?;
        at_least("recompute.layers", config.recompute.layers, 1)?;
        at_least("recompute.blocks", config.recompute.blocks.unwrap_or(1), 1)?;
        at_least("parallel.bucket_mib", parallel.bucket_mib, 1)?;
        let RecomputeConfig { granularity, layers, keep_attention, blocks: most, .. } = config.recompute;
        Ok(ParallelPlan {
            mesh,
            schedule,
            blocks,
            recompute: (granularity == RecomputeGranularity::Full).then_some(Recompute {
                blocks: layers,
                keeps_attention: keep_attention,
                most: most.unwrap_or(usize::MAX),
            }),
            layers_on_host: config.offload.activation_layers,
            state_on_host: StateOnHost::of(config)?,
            shares_table: mesh.size(Axis::Pipeline) > 1 && shares_table,
            sequence_parallel: parallel.sequence_parallel,
            context_transfers,
            sharding: checked_sharding(config)?,
            grad_reduce: match parallel.grad_reduce {
                GradReduce::F32 => DType::F32,
                GradReduce::Bf16 => DType::Bf16,
            },
            master_form: master_form(config)?,
            block_gradients: block_gradients(config)?,
            bucket_bytes: parallel.bucket_mib << 20,
        })
    }

    /// The ranks that divide master weights and optimizer state beyond the parameters.
    pub fn rest(&self) -> Axes {
        if self.sharding > Sharding::Nothing { self.mesh.that_divide() } else { Axes::NONE }
    }

    /// The pipeline stage of a rank.
    pub fn stage(&self, rank: usize) -> PipelineStage {
        PipelineStage::new(self.schedule, self.mesh.position(rank, Axis::Pipeline))
    }

    /// The part of the batch of a rank: its number among the data-parallel ranks.
    pub fn data_rank(&self, rank: usize) -> usize {
        self.mesh.position(rank, Axis::Data)
    }
}
