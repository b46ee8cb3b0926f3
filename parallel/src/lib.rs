#![doc = include_str!("../README.md")]

mod grid;
mod host_memory;
mod library_defaults;
mod mpi;
mod nccl;
mod nccl_version;
mod orders;
mod peer_link;
mod pipeline_groups;
mod placement;
mod receive_queue;
mod rendezvous;
mod schedule;
mod stage;
mod task;
mod threads;
mod world;

pub use grid::{Axis, Grid};
pub use library_defaults::set_library_defaults;
pub use nccl::nccl_version;
pub use nccl_version::NcclVersion;
pub use pipeline_groups::{Connect, PipelineGroups};
pub use placement::Placement;
pub use receive_queue::ReceiveQueue;
pub use schedule::Schedule;
pub use stage::PipelineStage;
pub use task::{Direction, Task, in_flight};
pub use threads::{ThreadRank, ThreadWorld};
pub use world::World;
