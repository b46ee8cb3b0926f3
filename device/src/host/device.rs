//! A host device.

use super::Pool;
use crate::Result;

/// The threads and state behind operations of a host device.
pub(crate) struct HostDevice {
    pub(crate) pool: Pool,
    /// Hold kernels to the tensors that their operations declare.
    pub(crate) check: bool,
}

impl HostDevice {
    /// # Errors
    /// The threads cannot be started, or the build has no host device.
    pub(crate) fn new(threads: usize, check: bool) -> Result<HostDevice> {
        Ok(HostDevice { pool: Pool::open(threads)?, check })
    }
}
