#![doc = include_str!("../README.md")]

pub mod batch_sizes;
pub mod fp8;
mod gradient_sync;
pub mod graph_options;
pub mod hooks;
mod inputs;
pub mod layer_partition;
mod microbatch;
pub mod model;
pub mod optimizer;
pub mod params;
pub mod passes;
mod pipeline;
pub mod precision;
pub mod regions;
pub mod step;
pub mod step_policy;
mod tile;
