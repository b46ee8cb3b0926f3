//! Facts about a device: its properties, its memory, and its counters.

use std::rc::Rc;

use super::Device;
use crate::capture::Checked;
use crate::dispatch::DeviceBackend;
use crate::gpu_types::{Counters, GpuProperties};
use crate::host_memory::available_memory;
use crate::{Op, Result, StreamId};

impl Device {
    /// The GPU's properties. `None` on the host.
    pub fn gpu(&self) -> Option<GpuProperties> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => None,
            DeviceBackend::Cuda(cuda) => Some(cuda.gpu.properties.clone()),
        }
    }

    /// A stream's name.
    pub fn stream_name(&self, stream: StreamId) -> Rc<str> {
        self.peek().streams[stream.index()].name.clone()
    }

    /// Free and total bytes of the GPU's memory. `None` on the host.
    ///
    /// # Errors
    /// The driver's.
    pub fn gpu_memory(&self) -> Result<Option<(usize, usize)>> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(None),
            DeviceBackend::Cuda(cuda) => cuda.gpu.memory().map(Some),
        }
    }

    /// Bytes of memory in use: on a GPU those of all processes, on the host those of areas.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_in_use(&self) -> Result<usize> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(self.allocated_bytes()),
            DeviceBackend::Cuda(cuda) => cuda.gpu.memory().map(|(free, total)| total - free),
        }
    }

    /// Bytes of the machine's memory that this process can still allocate. `None` if the system does not say.
    pub fn free_host_memory(&self) -> Option<usize> {
        available_memory()
    }

    /// Bytes of scratch memory that an operation needs while it runs. On a GPU each stream has as much as the operation that
    /// needs most. On the host they are allocated anew.
    pub fn scratch_bytes(&self, op: &Op) -> usize {
        match &self.peek().backend {
            DeviceBackend::Host(host) => op.on_host().scratch_bytes(&host.pool),
            DeviceBackend::Cuda(cuda) => op.on_cuda().scratch_bytes(cuda),
        }
    }

    /// The most bytes that one of the operations traced so far allocates while it runs. 0 on a GPU.
    pub fn host_scratch_bytes(&self) -> usize {
        self.peek().host_scratch
    }

    /// Counts of operations checked for races and stale reads so far. `None` on a device that does not check.
    pub fn checked(&self) -> Option<Checked> {
        self.peek().checker.as_ref().map(|checker| checker.checked)
    }

    /// Counts of calls that a steady step must not make. On the host all are 0.
    pub fn counters(&self) -> Counters {
        self.peek().backend.counters().unwrap_or_default()
    }
}
