//! Ranks and how they talk: who is in which group, communicators over NCCL, over MPI, and over threads of one process,
//! and in what order the stages of a pipeline work.
//!
//! Start with [`Grid`], which places ranks, and [`MpiWorld`], which a run makes once on its main thread; [`ThreadWorld`]
//! gives tests the same semantics without processes.

mod board;
mod grid;
mod groups;
mod host_memory;
mod library_defaults;
mod mpi_communicator;
mod mpi_world;
mod nccl;
mod pipeline;
mod schedule;
mod threads;

pub use grid::{Grid, Place};
pub use groups::{Connect, PipelineGroups};
pub use library_defaults::set_library_defaults;
pub use mpi_world::MpiWorld;
pub use nccl::{nccl_communicator, nccl_version};
pub use pipeline::{Arrivals, Direction, PipelineStage};
pub use schedule::{Task, in_flight, interleaved, one_f_one_b, zero_bubble};
pub use threads::{ThreadRank, ThreadWorld};
