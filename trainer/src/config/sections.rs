//! The configuration of a run: its sections together.

use std::collections::BTreeMap;

use data::{DataConfig, RecordKind};
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::config::options::{
    CheckpointConfig, CudaGraphConfig, DpoConfig, LoggingConfig, ModelConfig, OffloadConfig, OptimizerConfig,
    ParallelConfig, PrecisionConfig, RecomputeConfig, TrainConfig,
};

/// The configuration of a run with every option present. Names, types and words are checked, values are not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the options document every field")]
pub struct RunConfig {
    pub model: ModelConfig,
    pub data: DataConfig,
    pub dpo: DpoConfig,
    pub train: TrainConfig,
    pub optimizer: OptimizerConfig,
    pub precision: PrecisionConfig,
    pub parallel: ParallelConfig,
    pub recompute: RecomputeConfig,
    pub offload: OffloadConfig,
    pub cuda_graph: CudaGraphConfig,
    pub checkpoint: CheckpointConfig,
    pub logging: LoggingConfig,
    #[serde(default, skip_serializing_if = "OwnSettings::is_empty")]
    pub own: OwnSettings,
}

impl RunConfig {
    /// Whether the run goes on with a trained model, or learns from answers.
    pub fn fine_tunes(&self) -> bool {
        self.model.init_from.is_some() || self.data.kind() != RecordKind::Documents
    }

    /// Samples of a batch, if batches have conversations of like length. Without shorter steps that gains nothing.
    pub fn grouped_batch(&self) -> Option<usize> {
        let is_grouped = self.data.group_by_length && self.data.seq_length_buckets.len() > 1;
        is_grouped.then_some(self.train.global_batch_size)
    }

    /// See [`by_key`].
    pub fn by_key(&self) -> BTreeMap<String, Value> {
        by_key(toml::Table::try_from(self).unwrap_or_default())
    }
}

/// The values of a configuration by key, such as `optimizer.lr`. Unset options are absent.
pub fn by_key(config: toml::Table) -> BTreeMap<String, Value> {
    let sections = config.into_iter().filter_map(|(section, content)| match content {
        Value::Table(content) => Some((section, content)),
        _ => None,
    });
    let keyed = |(section, content): (String, toml::Table)| {
        content.into_iter().map(move |(name, value)| (format!("{section}.{name}"), value))
    };
    sections.flat_map(keyed).collect()
}

mod own;

pub use own::OwnSettings;

impl CheckpointConfig {
    /// Whether checkpoints before the last are written while training goes on. `in_memory`: so are states in memory.
    pub fn saves_meanwhile(&self, in_memory: bool) -> bool {
        self.async_save && (self.interval > 0 || self.save_best || in_memory)
    }

    /// Whether states in memory are asked for, beside checkpoints on disk.
    pub fn keeps_states(&self) -> bool {
        self.memory_interval > 0 && self.dir.is_some()
    }
}

/// The word for references that each step computes, in place of a file.
const STEP: &str = "step";

impl DpoConfig {
    /// Each step computes the references of the step's pairs, by the model without adapters.
    pub fn references_in_step(&self) -> bool {
        self.references.as_deref() == Some(STEP)
    }
}
