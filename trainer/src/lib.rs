//! Trains models: configuration, data, models, the step, and the run around it.
//!
//! Start with [`step::Stage::train_step`]; the layers it runs are in [`model`]. A configuration goes from [`options`]
//! (the table) through [`config`] (raw) to [`plan`] (checked), and [`run`] does it.

pub mod accelerator;
pub mod all_ranks;
pub mod batch_size;
pub mod batches;
pub mod bench;
pub mod buckets;
pub mod checkpoint;
mod checks;
pub mod cli;
pub mod config;
pub mod cut;
pub mod data;
pub mod doctor;
pub mod hf;
mod host_memory;
pub mod inputs;
pub mod layout;
pub mod logs;
pub mod megatron;
pub mod metrics;
pub mod model;
pub mod model_plan;
pub mod optimizer;
pub mod options;
pub mod outputs;
pub mod params;
pub mod partial_grads;
pub mod pipeline;
pub mod plan;
mod plan_box;
pub mod presets;
pub mod recipes;
pub mod reducer;
mod reporter;
pub mod run;
pub mod run_folder;
pub mod run_log;
pub mod same_settings;
pub mod sample;
pub mod schedule;
pub mod set_up;
pub mod signals;
pub mod stages;
pub mod step;
pub mod supervised;
pub mod tensorboard;
pub mod terminal;
pub mod trace;
pub mod wandb;
pub mod watch;
pub mod without_effect;
