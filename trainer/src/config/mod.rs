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

/// The groups of a text: each a line, and the words of the indented lines after it. Lines with # are comments.
fn groups(text: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match (line.strip_prefix("    "), groups.last_mut()) {
            (Some(words), Some((_, of))) => of.extend(words.split(' ')),
            _ => groups.push((line, Vec::new())),
        }
    }
    groups
}
