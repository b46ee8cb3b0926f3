//! The words for work on a GPU: options, properties, launches, counts. They need no CUDA, so every build has them;
//! [`cuda`](crate::cuda) exports them.

mod counters;
mod launch;
mod options;
mod properties;
mod work;

pub use counters::Counters;
pub use launch::{CudaCode, CudaKernel, CudaLaunch, KernelArgument};
pub use options::CudaOptions;
pub use properties::{FP8_CAPABILITY, GpuProperties, NoGpu};
pub use work::{CudaCall, CudaTensors, CudaWork};

pub use crate::communicator::StreamHandle;
