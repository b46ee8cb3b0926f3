//! From the command line and a file to a checked plan.
//!
//! 1. [`options`]: the table of all options. Flags, help, defaults and `docs/options.md` are made from it.
//! 2. [`ConfigSources`]: collects values from defaults, a preset, a file and flags, and resolves them to a [`RunConfig`].
//! 3. [`plan::RunPlan`]: checks the [`RunConfig`] and derives every size of the run.

pub mod activation_plan;
pub mod advice;
pub mod attention_plan;
pub mod batch_plan;
pub mod bucket_plan;
pub mod bucket_shares;
pub mod checks;
mod context_plan;
mod dpo_plan;
pub mod epochs;
mod evaluation_plan;
mod experts_plan;
mod fp8_plan;
pub mod freeze_plan;
mod frozen_weights;
mod further_plan;
pub mod graph_plan;
pub mod learning_rate;
pub mod lora_plan;
mod loss_pieces;
pub mod megatron;
mod mlp_tiles;
pub mod model_name;
pub mod model_plan;
pub mod model_size;
pub(crate) mod name_patterns;
pub mod optimizer_plan;
pub(crate) mod optimizers;
pub mod options;
pub mod other_names;
mod own_plan;
pub mod parallel_plan;
pub mod param_groups;
pub mod plan;
pub mod rank_layout;
pub mod recipes;
pub mod reference;
pub mod request;
mod sections;
mod sources;
pub mod unused_settings;
pub mod watch;

pub use context_plan::has_documents;
pub use optimizers::{OptimizerChoice, OwnOptimizer};
pub use sections::{
    Activation, AmaxAlgo, BalanceLossOver, CheckpointConfig, ContextTransfersChoice, CudaGraphConfig,
    DataParallelSharding, DecayStyle, DeviceChoice, DpoConfig, ExpertGroupScore, Fp8Choice, FrozenWeights, GradReduce,
    GraphMempool, GraphScope, LoggingConfig, ModelConfig, ModelKind, MomentDtype, NormPlacement, Normalization,
    OffloadConfig, OptimizerConfig, OwnSettings, ParallelConfig, PipelineSchedule, PositionEmbedding, PrecisionConfig,
    PreferenceLoss, QkNormOver, RecomputeConfig, RecomputeGranularity, ResidualInit, Resume, RopeScalingType,
    RouterScore, RunConfig, SyncDebugChoice, TensorTransfers, TokenDropPolicy, TrainConfig, VerifyMemory, by_key,
};
pub use sources::ConfigSources;
