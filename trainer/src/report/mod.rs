//! The reports of a run: lines on the console, logs, and files of metrics.

pub mod checks;
pub mod fp8_losses;
pub mod gpu_peak;
pub mod graph_report;
pub mod logs;
pub mod metrics;
mod progress;
pub mod replay_picture;
pub mod reporter;
pub mod run_log;
pub mod samples;
mod step_file;
pub mod summary;
pub mod tensorboard;
mod time_left;
pub mod wandb;
pub mod wandb_client;
