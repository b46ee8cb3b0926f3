#![doc = include_str!("../README.md")]

mod area;
mod context;
mod deferred;
mod error;
mod handover;
mod interval_index;
mod keys;
mod lifetimes;
mod manager;
mod options;
mod placement;
mod plan;
mod policy;
mod recording;
mod region;
mod report;
mod resources;
mod saved;
mod side_stream;
mod slots;
mod state;
mod tensor_tree;

pub use area::MemoryUse;
pub use context::StepContext;
pub use error::{Error, Result};
pub use manager::CudaGraphManager;
pub use options::{ManagerOptions, Mempool};
pub use policy::{CaptureAll, Instance, NoVariant, Policy};
pub use report::{EagerReport, GraphReport, Report};
pub use side_stream::{Fork, SideStream};
pub use tensor_tree::TensorTree;
