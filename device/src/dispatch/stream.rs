//! One stream's work: on the host the calling thread does it, on CUDA a stream of the driver.

use std::ops::Range;
use std::rc::Rc;

use super::{DeviceBackend, Note, Readback};
use crate::cuda::{CudaStream, RawEvent, RawGraph, RawStream};
use crate::host::HostStream;
use crate::host_memory::{ArrayColumns, HostBlock};
use crate::priority::Priority;
use crate::sync_debug::SyncWatch;
use crate::{CaptureMode, Element, HostArray, Op, Result, Tensor};

/// One stream's work. Always of the same kind as its device's [`DeviceBackend`].
pub(crate) enum StreamBackend {
    Host(HostStream),
    Cuda(Box<CudaStream>),
}

/// A point in a stream, recorded by an event.
#[derive(Clone)]
pub(crate) enum RecordedPoint {
    /// The number of collectives the stream had started. All other work was done.
    Host(u64),
    /// The driver's event.
    Cuda(Rc<RawEvent>),
}

impl StreamBackend {
    pub(crate) fn new(device: &DeviceBackend, priority: Priority) -> StreamBackend {
        match device {
            DeviceBackend::Host(_) => StreamBackend::Host(HostStream::default()),
            DeviceBackend::Cuda(_) => StreamBackend::Cuda(Box::new(CudaStream::new(priority))),
        }
    }

    /// Announces that an operation will run here, before memory is planned: libraries choose their algorithms now.
    pub(crate) fn prepare(&mut self, op: &Op, device: &DeviceBackend) -> Result<()> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => stream.prepare(op, cuda),
            _ => Ok(()),
        }
    }

    /// The driver's stream. `None` on the host, and on CUDA before the first use.
    pub(crate) fn raw_stream(&self) -> Option<Rc<RawStream>> {
        match self {
            StreamBackend::Host(_) => None,
            StreamBackend::Cuda(stream) => stream.made(),
        }
    }

    /// Runs an operation, or records it while the stream captures. The note is dropped once the operation is done (on
    /// CUDA: submitted).
    pub(crate) fn run(&mut self, op: &Op, device: &DeviceBackend, capturing: bool, note: Note) -> Result<()> {
        match (self, device) {
            (StreamBackend::Host(_), DeviceBackend::Host(_)) if capturing => Ok(()),
            (StreamBackend::Host(stream), DeviceBackend::Host(host)) => {
                let span = if let Note::Host(span) = note { Some(span) } else { None };
                stream.run(op, host, span)
            }
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => stream.run(op, cuda, capturing),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Whether a collective under way uses memory in that range. On CUDA freeing memory waits for the GPU.
    pub(crate) fn transfers_in(&self, range: &Range<u64>) -> bool {
        match self {
            StreamBackend::Host(stream) => stream.transfers_in(range),
            StreamBackend::Cuda(_) => false,
        }
    }

    /// Copies host data to a tensor.
    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T], device: &DeviceBackend) -> Result<()> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => stream.write(tensor, data, cuda),
            (StreamBackend::Host(stream), _) => stream.write(tensor, data),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Copies columns of an array of the host to a tensor.
    pub(crate) fn send<T: Element>(
        &mut self,
        tensor: &Tensor,
        data: &HostArray<T>,
        columns: ArrayColumns,
        device: &DeviceBackend,
    ) -> Result<()> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => stream.send(tensor, data, columns, cuda),
            (StreamBackend::Host(stream), _) => stream.write(tensor, &columns.of(data)),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Starts a copy of a tensor to the host.
    pub(crate) fn read<T: Element>(
        &mut self,
        tensor: &Tensor,
        device: &DeviceBackend,
        watch: Rc<SyncWatch>,
    ) -> Result<Readback<T>> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => {
                Ok(Readback::pending(stream.read(tensor, cuda)?, watch))
            }
            (StreamBackend::Host(stream), _) => Ok(Readback::arrived(stream.read(tensor)?, watch)),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Copies a part of a tensor to a block of host memory, from its byte `at` on.
    pub(crate) fn copy_out(&mut self, part: &Tensor, block: &mut HostBlock, at: usize) -> Result<()> {
        match self {
            StreamBackend::Cuda(stream) => stream.copy_out(part, block, at),
            StreamBackend::Host(stream) => stream.copy_out(part, &mut block.slice_mut(at + part.bytes())[at..]),
        }
    }

    /// An event after all work so far, for any thread. `None` on the host: there copies are done.
    pub(crate) fn mark(&self) -> Result<Option<RawEvent>> {
        match self {
            StreamBackend::Cuda(stream) => stream.mark().map(Some),
            StreamBackend::Host(_) => Ok(None),
        }
    }

    /// Records the point that the stream has reached. Reuses the driver's event of `earlier` if there is one.
    pub(crate) fn record(&self, earlier: Option<&RecordedPoint>) -> Result<RecordedPoint> {
        match (self, earlier) {
            (StreamBackend::Host(stream), _) => Ok(RecordedPoint::Host(stream.started())),
            (StreamBackend::Cuda(stream), Some(RecordedPoint::Cuda(event))) => {
                stream.record(event.clone()).map(RecordedPoint::Cuda)
            }
            (StreamBackend::Cuda(stream), _) => stream.record(Rc::new(RawEvent::new()?)).map(RecordedPoint::Cuda),
        }
    }

    /// Makes this stream's further work wait for a point that the driver recorded.
    pub(crate) fn wait(&self, point: &RecordedPoint) -> Result<()> {
        match (self, point) {
            (StreamBackend::Cuda(stream), RecordedPoint::Cuda(event)) => stream.raw()?.wait(event),
            _ => Ok(()),
        }
    }

    /// Blocks the host until this stream has passed one of its own points.
    pub(crate) fn finish_up_to(&mut self, point: &RecordedPoint) -> Result<()> {
        match (self, point) {
            (StreamBackend::Host(stream), RecordedPoint::Host(started)) => stream.finish_up_to(*started),
            (_, RecordedPoint::Cuda(event)) => event.synchronize(),
            _ => unreachable!("a recorded point is of its device's kind"),
        }
    }

    /// Blocks the host until all work is done. A stream that the driver does not have yet has none.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            StreamBackend::Host(stream) => stream.finish(),
            StreamBackend::Cuda(stream) => stream.made().map_or(Ok(()), |raw| raw.synchronize()),
        }
    }

    /// Starts the driver's capture. Prepared operations get their scratch memory first.
    pub(crate) fn begin_capture(&mut self, device: &DeviceBackend, mode: CaptureMode) -> Result<()> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => {
                stream.provide_scratch(cuda)?;
                stream.raw()?.begin_capture(mode)
            }
            _ => Ok(()),
        }
    }

    /// Frees scratch memory, and forgets the needs of prepared operations.
    pub(crate) fn free_scratch(&mut self) {
        if let StreamBackend::Cuda(stream) = self {
            stream.free_scratch();
        }
    }

    /// Bytes of scratch memory that prepared operations need.
    pub(crate) fn scratch_bytes(&self) -> usize {
        match self {
            StreamBackend::Host(_) => 0,
            StreamBackend::Cuda(stream) => stream.scratch_bytes(),
        }
    }

    /// Ends the driver's capture and returns its graph. `None` on the host.
    pub(crate) fn end_capture(&self, device: &DeviceBackend) -> Result<Option<RawGraph>> {
        match (self, device) {
            (StreamBackend::Cuda(stream), DeviceBackend::Cuda(cuda)) => {
                RawGraph::end_capture(&*stream.raw()?, &cuda.kernels).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Ends the driver's capture and discards its graph.
    pub(crate) fn abandon_capture(&self) {
        if let StreamBackend::Cuda(stream) = self
            && let Ok(raw) = stream.raw()
        {
            raw.abandon_capture();
        }
    }

    /// Makes a graph of the driver a child of the graph that this stream captures.
    pub(crate) fn add_to_capture(&self, graph: &RawGraph) -> Result<()> {
        match self {
            StreamBackend::Host(_) => unreachable!("a graph is of its device's kind"),
            StreamBackend::Cuda(stream) => graph.add_to_capture(&*stream.raw()?),
        }
    }

    /// Launches a graph of the driver.
    pub(crate) fn launch(&self, graph: &RawGraph) -> Result<()> {
        match self {
            StreamBackend::Host(_) => unreachable!("a graph is of its device's kind"),
            StreamBackend::Cuda(stream) => graph.launch(&*stream.raw()?),
        }
    }
}
