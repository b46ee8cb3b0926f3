//! The words for work on a GPU: options, properties, kernels and their launches, counts. They need no CUDA, so every build
//! has them; [`cuda`](crate::cuda) exports them.

mod arguments;
mod capability;
mod counters;
mod grid;
mod kernel_file;
mod kernel_operation;
mod launch;
mod options;
mod properties;
mod shape;
mod table;
mod work;

pub(crate) use arguments::{Arg, Field, args, fill, kernel_struct};
pub(crate) use capability::{accept_fp8, accept_on_hopper};
pub use counters::Counters;
pub(crate) use grid::Grid;
pub(crate) use kernel_file::kernel_file;
pub use kernel_file::{KernelFile, KernelSet};
pub(crate) use kernel_operation::KernelOperation;
pub use launch::{CudaCode, CudaKernel, CudaLaunch, KernelArgument};
pub use options::CudaOptions;
pub use properties::{FP8_CAPABILITY, GpuProperties, NoGpu};
pub(crate) use shape::{LoadWidth, THREADS, over_packs, over_rows};
pub(crate) use table::{for_each_table, table_chunks};
pub use work::{CudaCall, CudaTensors, CudaWork};

pub use crate::communicator::StreamHandle;
