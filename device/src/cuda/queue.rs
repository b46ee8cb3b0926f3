//! The place of an operation's launch.

use super::Kernels;
use super::driver::RawStream;
use crate::Result;
use crate::cuda::{Arg, Grid};
use crate::gpu_types::GpuProperties;

/// The place of an operation's launch: a stream, and scratch memory that belongs to that stream alone.
pub(crate) struct Queue<'a> {
    pub(crate) kernels: &'a Kernels,
    pub(crate) stream: &'a RawStream,
    /// Address of at least as many bytes as the operation needs.
    pub(crate) scratch: u64,
}

impl Queue<'_> {
    /// Launches one of our kernels.
    pub(crate) fn launch(&self, kernel: &str, grid: Grid, arguments: &[Arg]) -> Result<()> {
        self.kernels.launch(self.stream, kernel, grid, arguments)
    }

    /// Launches one of our kernels that takes a struct by value.
    pub(crate) fn launch_block<T: bytemuck::Pod>(&self, kernel: &str, grid: Grid, block: &T) -> Result<()> {
        self.kernels.launch_block(self.stream, kernel, grid, block)
    }

    /// Sets bytes of device memory to a value.
    pub(crate) fn set_bytes(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        self.stream.set_bytes(address, value, bytes)
    }

    /// Copies bytes of device memory.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.stream.copy(to, from, bytes)
    }

    /// The properties of the GPU.
    pub(crate) fn gpu(&self) -> &GpuProperties {
        self.kernels.gpu()
    }

    /// Streaming multiprocessors, for grids that fill the GPU.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.gpu().multiprocessors as usize
    }
}
