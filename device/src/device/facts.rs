//! Facts about a device: its properties, its memory, its counters and its choices.

use std::rc::Rc;

use super::Device;
use crate::backend::DeviceBackend;
use crate::checker::Checked;
use crate::cuda::norm_parts;
use crate::gpu::{Counters, GpuProperties};
use crate::host_memory::available_memory;
use crate::{Result, StreamId, Tensor};

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

    /// The most bytes that one of the operations traced so far allocates while it runs. 0 on a GPU.
    pub fn host_scratch_bytes(&self) -> usize {
        self.peek().host_scratch
    }

    /// Counts of operations checked for races and stale reads so far. `None` on a device that does not check.
    pub fn checked(&self) -> Option<Checked> {
        self.peek().checker.as_ref().map(|checker| checker.checked)
    }

    /// The number of parts for which a [`NormBackward`](crate::ops::NormBackward) of `input`, `(rows, hidden)`, is
    /// fastest here. `with_residual`: with parts of the sum of the residual gradient.
    pub fn norm_parts(&self, input: &Tensor, with_residual: bool) -> usize {
        match &self.peek().backend {
            DeviceBackend::Host(_) => 1,
            DeviceBackend::Cuda(cuda) => norm_parts(input, with_residual, cuda.gpu.properties.multiprocessors as usize),
        }
    }

    /// Counts of calls that a steady step must not make. On the host all are 0.
    pub fn counters(&self) -> Counters {
        self.peek().backend.counters().unwrap_or_default()
    }

    /// The methods chosen for matrix products on this GPU. The text is for [`Device::import_choices`] of other ranks,
    /// and of a later run that must give the same bits. `None` on the host: it has no choices.
    pub fn export_choices(&self) -> Option<String> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => None,
            DeviceBackend::Cuda(cuda) => Some(cuda.cublaslt.export()),
        }
    }

    /// Replaces this device's choices by those of another rank or run.
    ///
    /// # Errors
    /// The choices are for another GPU or another version of cuBLASLt, or are damaged.
    pub fn import_choices(&self, choices: &str) -> Result<()> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(()),
            DeviceBackend::Cuda(cuda) => cuda.cublaslt.import(choices),
        }
    }
}
