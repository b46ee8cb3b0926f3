//! Calls that go to one of the two implementations: a device and its streams run on the host or on CUDA.

mod device;
mod readback;
mod recorder;
mod stream;

pub(crate) use device::DeviceBackend;
pub use readback::Readback;
pub(crate) use recorder::{Note, Recorder};
pub(crate) use stream::{RecordedPoint, StreamBackend};
