//! Operations that go on beside the compute stream within a region, such as a transfer behind a product.

use device::{Event, Op, Stream};

use crate::{Error, Result, StepContext};

/// The side stream of a manager's regions.
pub(crate) struct SideStream {
    stream: Stream,
    forked: Event,
    /// Events that nothing is waited for with any more.
    free: Vec<Event>,
}

/// An operation under way beside the compute stream. [`StepContext::join`] it before the region ends.
#[must_use]
pub struct Fork {
    done: Event,
}

impl SideStream {
    pub(crate) fn new(compute: &Stream) -> SideStream {
        let device = compute.device();
        SideStream { stream: device.transfer_stream("beside"), forked: device.event(), free: Vec::new() }
    }
}

impl StepContext<'_> {
    /// Starts an operation after all that was submitted so far, to go on beside what follows until it is joined.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn fork(&mut self, op: impl Into<Op>) -> Result<Fork> {
        let side = &mut self.manager.beside;
        let done = side.free.pop().unwrap_or_else(|| side.stream.device().event());
        self.manager.compute.record(&side.forked)?;
        side.stream.wait(&side.forked)?;
        let submitted = side.stream.submit(op).and_then(|()| side.stream.record(&done));
        submitted.map_err(|source| Error::Device { region: self.region_name(), source })?;
        Ok(Fork { done })
    }

    /// Makes what follows wait for an operation under way.
    ///
    /// # Errors
    /// What the device refused, a failed transfer among it, with the region.
    pub fn join(&mut self, fork: Fork) -> Result<()> {
        let joined = self.manager.compute.wait(&fork.done);
        joined.map_err(|source| Error::Device { region: self.region_name(), source })?;
        self.manager.beside.free.push(fork.done);
        Ok(())
    }
}
