//! Operations that run on a side stream, next to the compute stream, within a graph.

use std::rc::Rc;

use device::{Device, Event, Op, Result, Stream};

/// A stream next to the compute stream, with the events that order the two. Fields drop in order: the stream last,
/// because it holds the device.
pub struct SideStream {
    forked: Event,
    joined: Event,
    stream: Stream,
}

/// Operations under way on a side stream. Operations that read their results wait for them without a join, and so does
/// the end of their graph. [`StepContext::join`](crate::StepContext::join) makes all later work wait for them.
#[must_use]
pub struct Fork {
    /// `None` if there was no operation.
    side: Option<Rc<SideStream>>,
}

impl SideStream {
    /// A stream of that name. If both are ready, its work starts before the compute stream's.
    pub fn new(device: &Device, name: &str) -> Rc<SideStream> {
        SideStream::of(device, device.transfer_stream(name))
    }

    /// A stream of that name. If both are ready, the compute stream's work starts before its own.
    pub fn background(device: &Device, name: &str) -> Rc<SideStream> {
        SideStream::of(device, device.background_stream(name))
    }

    fn of(device: &Device, stream: Stream) -> Rc<SideStream> {
        Rc::new(SideStream { stream, forked: device.event(), joined: device.event() })
    }
}

impl SideStream {
    /// Makes the side stream's later work wait for all earlier work on `compute`.
    pub(crate) fn begin_after(&self, compute: &Stream) -> Result<()> {
        compute.record(&self.forked)?;
        self.stream.wait(&self.forked)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Fork {
    /// Starts operations on `side` after all earlier work on `compute`.
    pub(crate) fn start(side: &Rc<SideStream>, compute: &Stream, work: Vec<Op>) -> Result<Fork> {
        if work.is_empty() {
            return Ok(Fork { side: None });
        }
        side.begin_after(compute)?;
        // Marks of transfers go to the compute stream. On the side stream the transfer would wait for its own mark, and
        // the mark for matrix products that already occupy the GPU.
        work.iter().try_for_each(|op| compute.announce(op))?;
        work.into_iter().try_for_each(|op| side.stream.submit_announced(op))?;
        Ok(Fork { side: Some(side.clone()) })
    }

    /// All earlier work on the stream.
    pub(crate) fn under_way(side: &Rc<SideStream>) -> Fork {
        Fork { side: Some(side.clone()) }
    }

    /// Leaves the operations under way. The next join of their stream waits for them too; it must come before the graph
    /// ends. Memory of the plan that they use stays theirs until then.
    pub fn leave(self) {}

    /// Makes `compute` wait for the fork's operations and for all work submitted to the fork's stream since.
    pub(crate) fn join(self, compute: &Stream) -> Result<()> {
        let Some(side) = self.side else { return Ok(()) };
        side.stream.record(&side.joined)?;
        compute.wait(&side.joined)
    }
}
