//! An operation as the host device runs it.

use super::{HostDevice, Pool};
use crate::Result;

/// An operation that the device's threads compute. It cannot fail.
pub(crate) trait HostKernel {
    /// Runs a checked operation to its end, on the calling thread and the pool's.
    fn run(&self, pool: &Pool);

    /// Bytes that the kernel allocates while it runs, small allocations aside. No memory plan has them, so they are
    /// estimated beforehand.
    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        0
    }
}

/// An operation as a host device runs it. Most are a [`HostKernel`].
pub(crate) trait HostOperation {
    /// Runs a checked operation to its end.
    ///
    /// # Errors
    /// A custom operation's.
    fn run(&self, device: &HostDevice) -> Result<()>;

    /// As [`HostKernel::scratch_bytes`].
    fn scratch_bytes(&self, pool: &Pool) -> usize;
}

impl<K: HostKernel> HostOperation for K {
    fn run(&self, device: &HostDevice) -> Result<()> {
        HostKernel::run(self, &device.pool);
        Ok(())
    }

    fn scratch_bytes(&self, pool: &Pool) -> usize {
        HostKernel::scratch_bytes(self, pool)
    }
}
