//! The CUDA device: the same operations on a GPU, through cuBLASLt, cuDNN and kernels of our own.

mod compile;
mod error;
mod gpu;
mod kernels;
mod memory;
mod ops;
mod queue;

pub use compile::{SOURCES, compile};
pub use gpu::{GpuProperties, gpu_count};
pub(crate) use gpu::Gpu;
pub(crate) use kernels::{Arg, Grid, Kernels};
pub(crate) use memory::{DeviceBlock, PinnedBlock};
pub(crate) use queue::{Arriving, RawEvent, RawGraph, RawStream};

use crate::{Op, Result};

/// Choices about a CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Which of the visible GPUs.
    pub ordinal: usize,
    /// The same bits from run to run: no timing of algorithms, no atomics.
    pub deterministic: bool,
    /// Matrix products of f32 tensors in TF32, 10 bits of mantissa.
    pub tf32: bool,
}

/// A GPU and everything that operations are launched with. Fields drop in order: the context last.
pub(crate) struct Cuda {
    pub(crate) kernels: Kernels,
    pub(crate) gpu: Gpu,
    pub(crate) options: CudaOptions,
}

/// Where an operation is launched: the stream, and scratch memory that belongs to that stream alone.
pub(crate) struct Queue<'a> {
    pub(crate) cuda: &'a Cuda,
    pub(crate) stream: &'a RawStream,
    /// Address of at least [`scratch_bytes`] of the operation.
    pub(crate) scratch: u64,
}

impl Queue<'_> {
    /// Launches one of our kernels.
    pub(crate) fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        self.cuda.kernels.launch(self.stream, kernel, grid, arguments)
    }

    /// Launches one of our kernels that takes a struct by value.
    pub(crate) fn launch_block<T: bytemuck::Pod>(&self, kernel: &str, grid: Grid, block: &T) -> Result<()> {
        self.cuda.kernels.launch_block(self.stream, kernel, grid, block)
    }

    /// Streaming multiprocessors, for grids that fill the GPU.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.cuda.gpu.properties.multiprocessors as usize
    }
}
