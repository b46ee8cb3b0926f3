//! The implementation behind a device.

use crate::cuda::CudaDevice;
use crate::gpu_types::Counters;
use crate::host::HostDevice;
use crate::submitted::Submitted;
use crate::{Op, Result};

/// The implementation behind a device.
pub(crate) enum DeviceBackend {
    /// The threads of this process.
    Host(HostDevice),
    /// A GPU.
    Cuda(Box<CudaDevice>),
}

impl DeviceBackend {
    /// The counts so far. `None` on the host.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            DeviceBackend::Host(_) => None,
            DeviceBackend::Cuda(cuda) => Some(*cuda.counters.borrow()),
        }
    }

    /// Fails unless a checked operation can be submitted to a stream. A capture goes on after such a failure.
    ///
    /// # Errors
    /// A GPU cannot run the operation, or cannot capture it yet.
    pub(crate) fn accept(&self, op: &Op, submitted: Submitted) -> Result<()> {
        match self {
            DeviceBackend::Host(_) => Ok(()),
            DeviceBackend::Cuda(cuda) => op.on_cuda().accept(submitted, cuda),
        }
    }
}
