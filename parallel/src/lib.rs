#![doc = include_str!("../README.md")]

mod host_memory;
mod library_defaults;
mod mesh;
mod mpi;
mod nccl;
mod nccl_library;
mod nccl_version;
mod orders;
mod peer_link;
mod pipeline_groups;
mod placement;
mod ranks;
mod receive_queue;
mod rendezvous;
mod schedule;
mod stage;
mod task;
mod threads;
mod world;

pub use library_defaults::set_library_defaults;
pub use mesh::{Axes, Axis, Mesh, MeshSizes, NoMesh, Place};
pub use mpi::mpi_version;
pub use nccl::nccl_version;
pub use nccl_version::NcclVersion;
pub use pipeline_groups::PipelineGroups;
pub use placement::Placement;
pub use ranks::{Connect, Connections, Purpose, Ranks, suits_peer_memory};
pub use receive_queue::ReceiveQueue;
pub use schedule::Schedule;
pub use stage::PipelineStage;
pub use task::{Direction, Task, in_flight};
pub use threads::{ThreadRank, ThreadWorld};
pub use world::World;
