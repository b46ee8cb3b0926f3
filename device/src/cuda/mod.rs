//! The CUDA device: the same operations on a GPU, through cuBLASLt, cuDNN and kernels of our own.

mod captured_call;
mod compile;
mod condition;
mod copy_to_host;
mod cublaslt;
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
mod ops;
mod peers;
mod progress_marks;
mod queue;
mod rewrite;
mod states;
mod stored;
mod stream;
mod timing;
mod versions;
mod when;

pub use compile::{EXPERT_SOURCES, FP8_SOURCES, HOPPER_SOURCES, SOURCES, WHEN_SOURCE, compile};
pub(crate) use copy_to_host::PendingCopy;
pub(crate) use cupti::{Cupti, CuptiNote};
pub(crate) use custom_kernels::CustomKernels;
pub(crate) use device::CudaDevice;
pub(crate) use driver::{DeviceMemory, PageLocked, PrimaryContext, RawEvent, RawStream, gpu_of};
pub use driver::{PeerHandle, gpu_count, why_no_gpu};
pub(crate) use graph::RawGraph;
pub(crate) use kernels::Kernels;
pub use kernels::compile_sets;
pub(crate) use ops::{accept, norm_parts};
pub use peers::{PeerWindow, Peers};
pub(crate) use progress_marks::ProgressMarks;
pub(crate) use queue::Queue;
pub(crate) use stream::CudaStream;
pub use versions::library_versions;

pub use crate::gpu::*;
