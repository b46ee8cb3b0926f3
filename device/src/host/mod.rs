//! The host device: the same operations on the CPU, with rayon and a GEMM library.

mod custom;
mod declared;
mod device;
mod elementwise;
mod operation;
mod pool;
mod rows_of_ranks;
mod run;
mod select;
mod stream;
mod tensors;
#[cfg(feature = "trainer-ops")]
mod trainer;
pub(crate) mod view;

pub(crate) use device::HostDevice;
pub(crate) use operation::{HostKernel, HostOperation};
pub use pool::Pool;
pub(crate) use rows_of_ranks::start_rows;
pub(crate) use run::run;
pub(crate) use stream::HostStream;
pub use tensors::HostTensors;
