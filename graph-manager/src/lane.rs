//! The stream of a second lane, next to the compute stream.

use std::cell::Cell;

use device::{Device, Event, Stream};

use crate::error::Result;

/// The stream of the second lane, with the events that order it and the compute stream. Fields drop in order: the stream,
/// which holds the device, last.
pub(crate) struct Lane {
    forked: Event,
    /// The ends of what was run aside, in turn.
    ended: [Event; 2],
    turn: Cell<usize>,
    stream: Stream,
}

/// Regions under way on the second lane. [Join](crate::StepContext::join_aside) them before the end of the region around
/// them, and before the next but one is run aside.
#[must_use]
pub struct Aside {
    event: usize,
}

impl Lane {
    pub(crate) fn new(device: &Device) -> Lane {
        let stream = device.background_stream("second lane");
        Lane { forked: device.event(), ended: [device.event(), device.event()], turn: Cell::new(0), stream }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Makes what follows on the lane wait for all that was submitted to `compute`.
    pub(crate) fn fork(&self, compute: &Stream) -> Result<()> {
        compute.record(&self.forked)?;
        Ok(self.stream.wait(&self.forked)?)
    }

    /// All that was submitted to the lane.
    pub(crate) fn under_way(&self) -> Result<Aside> {
        let event = self.turn.replace(1 - self.turn.get());
        self.stream.record(&self.ended[event])?;
        Ok(Aside { event })
    }

    /// Makes what follows on `compute` wait for it.
    pub(crate) fn join(&self, aside: &Aside, compute: &Stream) -> Result<()> {
        Ok(compute.wait(&self.ended[aside.event])?)
    }
}
