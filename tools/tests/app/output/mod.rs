//! The output of runs.

mod graph_report;
mod nvtx;
mod profile;
mod report;
mod run_log;
pub mod terminal;
mod top;
mod trace;
mod wandb_client;
