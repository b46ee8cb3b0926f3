//! Only the second block is a graph, forward and backward; all else runs eagerly, in the same planned memory. The
//! policy decides on the captured regions. The report gives its reasons for the others. The step is in
//! `shared/regions.rs`.
//!
//!     cargo run --release -p graph-manager --example one_block            # a small network on the host
//!     cargo run --release -p graph-manager --example one_block -- cuda    # the whole one on a GPU, with times

mod shared;

use graph_manager::{Result, TrainingPolicy, TrainingRegion};
use shared::regions::ByRegion;

pub(crate) fn main() -> Result<()> {
    let policy = || {
        TrainingPolicy::choosing(|region| match region {
            TrainingRegion::Layer { call, .. } if call.layer == 1 => Ok(()),
            _ => Err("it is not of the chosen block"),
        })
    };
    shared::run("one block", |mlp| ByRegion::new(mlp, policy()))
}
