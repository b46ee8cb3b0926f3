//! MPI: the control messages of every run of several ranks, and the transfers of the host device.

mod communicator;
mod error;
mod world;

pub(crate) use communicator::MpiCommunicator;
pub(crate) use world::MpiWorld;
