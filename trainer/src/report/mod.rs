//! What a run tells: lines, logs, metrics.

pub mod logs;
pub mod metrics;
pub mod plan_box;
pub mod reporter;
pub mod run_log;
pub mod tensorboard;
pub mod wandb;
