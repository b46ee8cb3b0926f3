//! The CUDA device: the same operations on a GPU, through cuBLASLt, cuDNN and kernels of our own.

mod all_kernels;
mod captured_call;
mod compile;
mod condition;
mod copy_to_host;
#[cfg(feature = "trainer-ops")]
mod cublaslt;
#[cfg(feature = "trainer-ops")]
mod cudnn;
mod cupti;
mod custom_kernels;
mod device;
mod driver;
mod graph;
mod kept_whens;
mod kernels;
mod libraries;
mod machine_code;
mod module;
mod nvml;
mod ops;
mod peers;
mod presence;
mod progress_marks;
mod python_packages;
mod queue;
mod rewrite;
mod states;
mod stored;
mod stream;
#[cfg(feature = "trainer-ops")]
mod timing;
mod versions;
mod when;

pub(crate) use all_kernels::open;
pub use all_kernels::{compile_sets, kernel_files};
pub use compile::{compile, cubin_name};
pub(crate) use copy_to_host::PendingCopy;
pub(crate) use cupti::{Cupti, CuptiNote};
pub(crate) use custom_kernels::CustomKernels;
pub(crate) use device::CudaDevice;
pub(crate) use driver::{DeviceMemory, PageLocked, PrimaryContext, RawEvent, RawStream, gpu_of};
pub use driver::{PeerHandle, gpu_count, why_no_gpu};
pub(crate) use graph::RawGraph;
pub(crate) use kernels::Kernels;
pub use kernels::{KernelFile, KernelSet};
pub use nvml::{EnergyMeter, GpuLoads};
#[cfg(feature = "trainer-ops")]
pub(crate) use ops::norm_parts;
pub(crate) use ops::{CudaOperation, KernelOperation};
pub use peers::{PeerWindow, Peers};
pub(crate) use progress_marks::ProgressMarks;
pub use python_packages::load_library;
pub(crate) use queue::Queue;
pub(crate) use stream::CudaStream;
pub use versions::library_versions;

pub use crate::gpu::*;
