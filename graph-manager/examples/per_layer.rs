//! A graph for each block's forward and backward, made just in time: Megatron's `CudaGraphManager`. The manager records
//! the first step, plans its memory, warms up, captures each region when a step first comes to it, and replays. The
//! step is in `shared/regions.rs`.
//!
//!     cargo run --release -p graph-manager --example per_layer            # a small network on the host
//!     cargo run --release -p graph-manager --example per_layer -- cuda    # the whole one on a GPU, with times

mod shared;

use graph_manager::{Result, TrainingPolicy};
use shared::regions::ByRegion;

pub(crate) fn main() -> Result<()> {
    shared::run("per layer", |mlp| ByRegion::new(mlp, TrainingPolicy::default()))
}
