//! The CUDA driver: the GPU, memory, streams and events, each owned by one value that gives it back, and the meaning of
//! the driver's errors.

mod causes;
mod error;
mod event;
mod gpu;
mod memory;
mod numa;
mod page_locked;
mod peer_memory;
mod stream;
mod tensor_map;

pub(super) use causes::is_of_code;
pub(super) use error::{Driver, missing_library};
pub(crate) use event::RawEvent;
pub(super) use gpu::driver_version;
pub(crate) use gpu::{Gpu, PrimaryContext};
pub use gpu::{gpu_count, why_no_gpu};
pub(crate) use memory::{DeviceMemory, gpu_of};
pub(super) use memory::{copy_to_device, copy_to_host, zero};
pub(crate) use page_locked::PageLocked;
pub use peer_memory::PeerHandle;
pub(super) use peer_memory::{MappedMemory, handle_of};
pub(crate) use stream::RawStream;
pub(super) use stream::{CaptureInfo, StreamOwner};
#[cfg(feature = "trainer-ops")]
pub(crate) use tensor_map::TensorMap;
