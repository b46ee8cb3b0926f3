//! One rank's training step: layers, parameters, gradient synchronisation, optimizer, pipeline transfers, and the graphs that
//! run them. It reads no file, flag or environment.
//!
//! Start with [`step::Stage::train_step`]; the layers it runs are in [`model`].

mod gradient_sync;
pub mod graph_options;
mod inputs;
pub mod layer_partition;
pub mod model;
pub mod optimizer;
pub mod params;
mod pipeline;
pub mod regions;
pub mod step;
pub mod step_policy;
