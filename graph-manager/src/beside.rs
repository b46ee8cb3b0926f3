//! Transfers, and what belongs to them, that go on beside the compute stream within a region.

use std::rc::Rc;

use device::{Device, Event, Op, Stream};

use crate::{Result, StepContext};

/// A stream beside the compute stream, with the events that order the two.
pub struct SideStream {
    stream: Stream,
    forked: Event,
    joined: Event,
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
        let mut work = work.into_iter().peekable();
        if work.peek().is_none() {
            return Ok(Fork { side: None });
        }
        self.compute().record(&side.forked).map_err(|source| self.in_region(source))?;
        side.stream.wait(&side.forked).map_err(|source| self.in_region(source))?;
        for op in work {
            side.stream.submit(op).map_err(|source| self.in_region(source))?;
        }
        Ok(Fork { side: Some(side.clone()) })
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
