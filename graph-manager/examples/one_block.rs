//! Only the second block is a graph, forward and backward; all else runs eagerly, in the same planned memory. The
//! policy in `shared/regions.rs` decides on the captured regions. The report gives its reasons for the others.
//!
//!     cargo run --release -p graph-manager --example one_block            # a small network on the host
//!     cargo run --release -p graph-manager --example one_block -- cuda    # the whole one on a GPU, with times

mod shared;

use graph_manager::Result;
use shared::regions::{ByRegion, Captured};

pub(crate) fn main() -> Result<()> {
    shared::run("one block", |mlp| ByRegion::new(mlp, Captured::Block(1)))
}
