//! What is known of a device: what it is, what memory it has, what it did and what it chose.

use super::Device;
use crate::Result;
use crate::backend::DeviceBackend;
use crate::cuda::{Counters, GpuProperties};
use crate::host::memory::available;

impl Device {
    /// What the GPU is; nothing on the host.
    pub fn gpu(&self) -> Option<GpuProperties> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => None,
            DeviceBackend::Cuda(cuda) => Some(cuda.gpu.properties.clone()),
        }
    }

    /// Free and total bytes of the GPU's memory; nothing on the host.
    ///
    /// # Errors
    /// The driver's.
    pub fn gpu_memory(&self) -> Result<Option<(usize, usize)>> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(None),
            DeviceBackend::Cuda(cuda) => cuda.gpu.memory().map(Some),
        }
    }

    /// Bytes of memory in use: on a GPU by this process and others, on the host by areas.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_in_use(&self) -> Result<usize> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(self.allocated_bytes()),
            DeviceBackend::Cuda(cuda) => cuda.gpu.memory().map(|(free, total)| total - free),
        }
    }

    /// Bytes of the machine's memory that this process can still take, where the device computes in them and the system
    /// tells.
    pub fn free_host_memory(&self) -> Option<usize> {
        matches!(self.peek().backend, DeviceBackend::Host(_)).then(available).flatten()
    }

    /// The most bytes that one of the operations traced so far takes from the system while it runs; 0 on a GPU.
    pub fn host_scratch_bytes(&self) -> usize {
        self.peek().host_scratch
    }

    /// What was done so far that a steady step must not do; on the host all 0.
    pub fn counters(&self) -> Counters {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Counters::default(),
            DeviceBackend::Cuda(cuda) => *cuda.counters.borrow(),
        }
    }

    /// How matrix products are done on this GPU: text for [`Device::import_choices`] of other ranks, and of a run that goes
    /// on with this one's bits. Nothing on the host, which has no choice.
    pub fn export_choices(&self) -> Option<String> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => None,
            DeviceBackend::Cuda(cuda) => Some(cuda.cublaslt.export()),
        }
    }

    /// Takes over the choices of another rank or run, in place of its own.
    ///
    /// # Errors
    /// The choices are for another GPU or version of cuBLASLt, or damaged.
    pub fn import_choices(&self, choices: &str) -> Result<()> {
        match &self.peek().backend {
            DeviceBackend::Host(_) => Ok(()),
            DeviceBackend::Cuda(cuda) => cuda.cublaslt.import(choices),
        }
    }
}
