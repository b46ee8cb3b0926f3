//! A copy of the stage's state beside the next step.

use device::{HostCopy, Result, Staging, Tensor};

use super::Stage;

impl Stage {
    /// Begins to copy tensors, such as weights, to the host between two steps. The copies are on a stream of their own,
    /// beside the forwards and backwards of the next step. Only the first work that writes to these tensors waits for
    /// them. See [`Stream::copy_out`](device::Stream::copy_out) for their memory.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn copy_out(&mut self, tensors: &[Tensor], staging: &Staging) -> Result<HostCopy> {
        let device = self.device().clone();
        let stream = self.copies.get_or_insert_with(|| device.background_stream("copies to the host")).clone();
        let (written, copied) = (device.event(), device.event());
        self.compute.record(&written)?;
        stream.wait(&written)?;
        let copy = stream.copy_out(tensors, staging);
        // Copies that were begun before an error are under way too.
        stream.record(&copied)?;
        self.graphs.protect(tensors.iter().copied(), copied);
        copy
    }
}
