//! A host device.

use super::Pool;
use crate::{Error, Result};

/// The threads and state behind operations of a host device.
pub(crate) struct HostDevice {
    pub(crate) pool: Pool,
    /// Hold kernels to the tensors that their operations declare.
    pub(crate) check: bool,
}

impl HostDevice {
    /// # Errors
    /// The threads cannot be started.
    pub(crate) fn new(threads: usize, check: bool) -> Result<HostDevice> {
        let refused = |error| Error::operation("device", format!("cannot start {threads} threads: {error}"));
        Ok(HostDevice { pool: Pool::new(threads).map_err(refused)?, check })
    }
}
