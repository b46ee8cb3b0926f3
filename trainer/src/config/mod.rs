//! From the command line and a file to a checked plan.
//!
//! 1. [`options`]: the table of all options. Flags, help, defaults and `docs/options.md` are made from it.
//! 2. [`ConfigSources`]: collects values from defaults, a preset, a file and flags, and resolves them to a [`RunConfig`].
//! 3. [`plan::RunPlan`]: checks the [`RunConfig`] and derives every size of the run.

pub mod advice;
pub mod checks;
pub mod megatron;
pub mod model_name;
pub(crate) mod optimizers;
pub mod options;
pub mod other_names;
pub mod plan;
pub mod recipes;
pub mod reference;
pub mod request;
mod sections;
mod sources;
pub mod unused_settings;

pub use optimizers::{OptimizerChoice, OwnOptimizer};
pub use plan::has_documents;
pub use sections::{
    Activation, AmaxAlgo, BalanceLossOver, CheckpointConfig, ContextTransfersChoice, CudaGraphConfig,
    DataParallelSharding, DecayStyle, DeviceChoice, DpoConfig, ExpertGroupScore, Fp8Choice, FrozenWeights, GradReduce,
    GraphMempool, GraphScope, LoggingConfig, ModelConfig, ModelKind, MomentDtype, NormPlacement, Normalization,
    OffloadConfig, OptimizerConfig, OwnSettings, ParallelConfig, PipelineSchedule, PositionEmbedding, PrecisionConfig,
    PreferenceLoss, QkNormOver, RecomputeConfig, RecomputeGranularity, ResidualInit, Resume, RopeScalingType,
    RouterScore, RunConfig, SyncDebugChoice, TensorTransfers, TokenDropPolicy, TrainConfig, VerifyMemory, by_key,
};
pub use sources::ConfigSources;
