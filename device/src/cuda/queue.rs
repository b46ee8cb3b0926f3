//! The place of an operation's launch.

use super::Kernels;
use super::driver::RawStream;
use super::kernels::{Arg, Grid};
use crate::Result;
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

    /// As [`Queue::launch_block`] in clusters of blocks.
    pub(crate) fn launch_clusters<T: bytemuck::Pod>(
        &self,
        kernel: &str,
        grid: Grid,
        cluster: u32,
        block: &T,
    ) -> Result<()> {
        self.kernels.launch_clusters(self.stream, kernel, grid, cluster, block)
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
