//! MPI: the control messages of every run of several ranks, and the transfers of the host device.

mod abi;
mod communicator;
mod group;
mod library;

pub(crate) use communicator::MpiCommunicator;
pub(crate) use group::MpiGroup;
pub use library::mpi_version;
