//! What a device runs on.

use crate::cuda::CudaDevice;
use crate::host::Pool;

/// What a device runs on.
pub(crate) enum DeviceBackend {
    /// The threads of this process.
    Host(Pool),
    /// A GPU.
    Cuda(Box<CudaDevice>),
}
