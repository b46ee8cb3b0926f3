//! Records one training step, plans its memory, captures its regions into graphs and replays them.
//!
//! Start with [`Region`] (what a step is made of) and [`CudaGraphManager::step`] (what happens to it), then read the
//! memory plan. Regions are closures: this crate knows no model, no NCCL and no MPI. [`Layer`] is what it asks of the code
//! of a layer.

mod beside;
mod by_time;
mod context;
mod deferred;
mod error;
mod kept;
mod layer;
mod manager;
mod options;
mod placement;
mod plan;
mod region;
mod report;
mod step_shape;

pub use beside::{Fork, SideStream};
pub use context::StepContext;
pub use error::{Error, Result};
pub use layer::{Flow, Layer};
pub use manager::CudaGraphManager;
pub use options::{GraphOptions, Mempool, Scope};
pub use plan::MemoryUse;
pub use region::{Mode, Region};
pub use report::{EagerReport, GraphReport, Report};
pub use step_shape::StepShape;
