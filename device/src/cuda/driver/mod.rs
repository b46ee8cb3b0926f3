//! The CUDA driver: the GPU, memory, streams and events, each owned by one value that gives it back, and what the
//! driver's errors mean.

mod causes;
mod error;
mod event;
mod gpu;
mod memory;
mod peer_memory;
mod stream;

pub(super) use error::{Driver, missing_library};
pub(crate) use event::RawEvent;
pub(super) use gpu::driver_version;
pub(crate) use gpu::{Gpu, PrimaryContext};
pub use gpu::{GpuProperties, NoGpu, gpu_count, why_no_gpu};
pub(crate) use memory::{DeviceBlock, PinnedBlock};
pub(super) use memory::{copy_to_device, copy_to_host, zero};
pub use peer_memory::PeerHandle;
pub(super) use peer_memory::{MappedBlock, handle_of, synchronize_context};
pub(crate) use stream::RawStream;
