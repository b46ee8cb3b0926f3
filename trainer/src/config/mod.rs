//! From the command line and a file to a checked plan.
//!
//! 1. [`options`]: the table of all options. Flags, help, defaults, sections and `docs/options.md` are made from it.
//! 2. [`ConfigSources`]: collects values from defaults, a preset, a file and flags, and resolves them to a [`RunConfig`].
//! 3. [`plan::RunPlan`]: checks the [`RunConfig`] and derives every size of the run.

pub mod advice;
pub mod checks;
mod choices;
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

pub use choices::*;
pub use optimizers::{OptimizerChoice, OwnOptimizer};
pub use options::{
    CheckpointConfig, CudaGraphConfig, DpoConfig, LoggingConfig, ModelConfig, OffloadConfig, OptimizerConfig,
    ParallelConfig, PrecisionConfig, RecomputeConfig, TrainConfig,
};
pub use plan::has_documents;
pub use sections::{OwnSettings, RunConfig, by_key};
pub use sources::ConfigSources;
