//! Custom operations.

use super::{HostDevice, HostKernel, HostOperation, HostTensors, Pool};
use crate::ops::{Custom, Operation, Poison};
use crate::{Result, calling};

impl Custom {
    /// Overwrites the tensors that the operation declares to write alone, before it runs: one that reads them, or leaves a
    /// part as it was, does not get away with it.
    pub(super) fn poison_outputs(&self, pool: &Pool) {
        self.written_alone().for_each(|output| HostKernel::run(&Poison { output }, pool));
    }
}

impl HostOperation for Custom {
    fn run(&self, device: &HostDevice) -> Result<()> {
        calling::run(self.name(), || self.op().run_host(&mut HostTensors::new(self, &device.pool)))
    }

    fn scratch_bytes(&self, _pool: &Pool) -> usize {
        0
    }
}
