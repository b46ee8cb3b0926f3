//! What a device chooses for operations of a trainer.

use super::Device;
use crate::dispatch::DeviceBackend;
use crate::ops::RowSums;
use crate::{Result, Tensor};

impl Device {
    /// The number of parts for which a [`NormBackward`](crate::ops::NormBackward) of `input`, `(rows, hidden)`, is
    /// fastest here.
    pub fn norm_parts(&self, input: &Tensor, sums: RowSums) -> usize {
        match &self.peek().backend {
            DeviceBackend::Host(_) => 1,
            DeviceBackend::Cuda(cuda) => {
                crate::ops::norm_parts(input, sums, cuda.gpu.properties.multiprocessors as usize)
            }
        }
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
