//! The CUDA device: the same operations on a GPU, through cuBLASLt, cuDNN and kernels of our own.

mod copy_to_host;
#[cfg(feature = "trainer-ops")]
mod cublaslt;
#[cfg(feature = "trainer-ops")]
mod cudnn;
mod cupti;
mod device;
pub(crate) mod driver;
mod graph;
pub(crate) mod kernels;
mod libraries;
mod ops;
mod peers;
mod progress_marks;
mod queue;
mod rewrite;
mod states;
mod stored;
mod stream;
#[cfg(feature = "trainer-ops")]
mod timing;

pub(crate) use copy_to_host::PendingCopy;
pub(crate) use cupti::{Cupti, CuptiNote};
pub(crate) use device::CudaDevice;
pub(crate) use driver::{DeviceMemory, PageLocked, PrimaryContext, RawEvent, RawStream, gpu_of};
pub use driver::{PeerHandle, gpu_count, why_no_gpu};
pub(crate) use graph::RawGraph;
pub(crate) use kernels::{CustomKernels, Kernels, open};
pub use kernels::{compile, compile_sets, cubin_name, kernel_files};
pub use libraries::{EnergyMeter, GpuLoads, library_versions, load_library};
pub(crate) use ops::CudaOperation;
pub use peers::{PeerWindow, Peers};
pub(crate) use progress_marks::ProgressMarks;
pub(crate) use queue::Queue;
pub(crate) use stream::CudaStream;

pub use crate::gpu_types::*;
