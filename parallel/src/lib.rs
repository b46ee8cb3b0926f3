//! Ranks and how they talk: communicators over NCCL, over MPI, and over threads of one process.
//!
//! Start with [`MpiWorld`], which a run makes once on its main thread; [`ThreadWorld`] gives tests the same semantics
//! without processes.

mod mpi_world;
mod nccl;
mod threads;

pub use mpi_world::MpiWorld;
pub use nccl::{nccl_communicator, nccl_version, set_nccl_defaults};
pub use threads::{ThreadRank, ThreadWorld};
