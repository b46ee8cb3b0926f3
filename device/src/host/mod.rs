//! The host device: the same operations on the CPU, with rayon and a GEMM library.

mod columns;
mod custom;
mod declared;
mod device;
mod map;
mod operation;
#[cfg(feature = "trainer-ops")]
pub(crate) mod parts;
#[cfg_attr(not(feature = "host"), path = "no_pool.rs")]
mod pool;
mod rows_of_ranks;
mod run;
mod stream;
mod tensors;
pub(crate) mod view;

pub(crate) use columns::{column_sums, store_sums};
pub(crate) use device::HostDevice;
pub(crate) use map::{CHUNK, map, map_in_place, with_float};
pub(crate) use operation::{HostKernel, HostOperation};
pub use pool::Pool;
pub(crate) use rows_of_ranks::start_rows;
pub(crate) use run::run;
pub(crate) use stream::HostStream;
pub use tensors::HostTensors;
pub(crate) use view::to_f32;
