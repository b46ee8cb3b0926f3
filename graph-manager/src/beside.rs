//! Transfers, and what belongs to them, that go on beside the compute stream within a region.

use std::rc::Rc;

use device::{Device, Event, Op, Stream};

use crate::{Result, StepContext};

/// A stream beside the compute stream, with the events that order the two. Fields drop in order: the stream, which holds
/// the device, last.
pub struct SideStream {
    forked: Event,
    joined: Event,
    stream: Stream,
}

/// Operations under way on a side stream. [`StepContext::join`] them before the region ends.
#[must_use]
pub struct Fork {
    /// None where there was nothing to do.
    side: Option<Rc<SideStream>>,
}

impl SideStream {
    /// A stream of that name, whose work begins before the compute stream's where both are ready.
    pub fn new(device: &Device, name: &str) -> Rc<SideStream> {
        Rc::new(SideStream { stream: device.transfer_stream(name), forked: device.event(), joined: device.event() })
    }
}

impl StepContext<'_> {
    /// The side stream of whatever a layer has going on beside its own work.
    pub fn side(&self) -> &Rc<SideStream> {
        &self.manager.beside
    }

    /// Starts operations after all that was submitted so far, to go on beside what follows until they are joined.
    ///
    /// # Errors
    /// What the device refused, with the region.
    pub fn fork(&self, side: &Rc<SideStream>, work: impl IntoIterator<Item = Op>) -> Result<Fork> {
        let work: Vec<Op> = work.into_iter().collect();
        if work.is_empty() {
            return Ok(Fork { side: None });
        }
        self.start(side, work).map_err(|source| self.in_region(source))?;
        Ok(Fork { side: Some(side.clone()) })
    }

    fn start(&self, side: &SideStream, work: Vec<Op>) -> device::Result<()> {
        self.compute().record(&side.forked)?;
        side.stream.wait(&side.forked)?;
        // By the compute stream: a transfer that came after its own mark would find the card taken by the product beside it.
        work.iter().try_for_each(|op| self.compute().announce(op))?;
        work.into_iter().try_for_each(|op| side.stream.submit_announced(op))
    }

    /// Makes what follows wait for the operations under way, and for all that was started on their stream meanwhile.
    ///
    /// # Errors
    /// What the device refused, a failed transfer among it, with the region.
    pub fn join(&self, fork: Fork) -> Result<()> {
        let Some(side) = fork.side else { return Ok(()) };
        side.stream.record(&side.joined).map_err(|source| self.in_region(source))?;
        self.compute().wait(&side.joined).map_err(|source| self.in_region(source))
    }
}
