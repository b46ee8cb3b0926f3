//! What a stream's work runs on: on the host the calling thread, on CUDA a stream of the driver's.

use std::rc::Rc;

use crate::cuda::{Cuda, CudaLane, RawEvent, RawGraph, RawStream};
use crate::host::{HostLane, Pool};
use crate::stream::Readback;
use crate::timeline::Note;
use crate::{Element, HostArray, Op, Result, Tensor};

/// What a device is made of.
pub(crate) enum Backend {
    Host(Pool),
    Cuda(Box<Cuda>),
}

/// One stream's work, of its device's kind.
pub(crate) enum Lane {
    Host(HostLane),
    Cuda(Box<CudaLane>),
}

/// How far a stream had come when an event was recorded on it.
#[derive(Clone)]
pub(crate) enum Mark {
    /// The number of collectives it had started; all other work was done.
    Host(u64),
    /// The driver's event.
    Cuda(Rc<RawEvent>),
}

/// With which of two streams a GPU begins where both have work that is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Priority {
    /// The other, if that has transfers.
    #[default]
    Compute,
    /// This one.
    Transfer,
}

impl Lane {
    pub(crate) fn new(backend: &Backend, priority: Priority) -> Lane {
        match backend {
            Backend::Host(_) => Lane::Host(HostLane::default()),
            Backend::Cuda(_) => Lane::Cuda(Box::new(CudaLane::new(priority))),
        }
    }

    /// Notes that an operation will run here, before memory is planned: libraries choose their algorithms now.
    pub(crate) fn prepare(&mut self, op: &Op, backend: &Backend) -> Result<()> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.prepare(op, cuda),
            _ => Ok(()),
        }
    }

    /// The driver's stream, once there is one.
    pub(crate) fn raw_stream(&self) -> Option<Rc<RawStream>> {
        match self {
            Lane::Host(_) => None,
            Lane::Cuda(lane) => lane.made(),
        }
    }

    /// Runs an operation, or records it while the stream captures. The note is dropped when it is done, or on CUDA
    /// submitted.
    pub(crate) fn run(&mut self, op: &Op, backend: &Backend, capturing: bool, note: Note) -> Result<()> {
        match (self, backend) {
            (Lane::Host(_), Backend::Host(_)) if capturing => Ok(()),
            (Lane::Host(lane), Backend::Host(pool)) => lane.run(op, pool, note),
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.run(op, cuda, capturing),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Copies host data to a tensor.
    pub(crate) fn write<T: Element>(&mut self, tensor: &Tensor, data: &[T], backend: &Backend) -> Result<()> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.write(tensor, data, cuda),
            (Lane::Host(lane), _) => lane.write(tensor, data),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Copies an array of the host to a tensor.
    pub(crate) fn send<T: Element>(&mut self, tensor: &Tensor, data: &HostArray<T>, backend: &Backend) -> Result<()> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.send(tensor, data, cuda),
            (Lane::Host(lane), _) => lane.write(tensor, data),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Starts a copy of a tensor to the host.
    pub(crate) fn read<T: Element>(&mut self, tensor: &Tensor, backend: &Backend) -> Result<Readback<T>> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.read(tensor, cuda),
            (Lane::Host(lane), _) => lane.read(tensor),
            _ => unreachable!("a stream is of its device's kind"),
        }
    }

    /// Marks how far the stream has come, with the event of an earlier mark where there is one.
    pub(crate) fn mark(&self, before: Option<&Mark>) -> Result<Mark> {
        match (self, before) {
            (Lane::Host(lane), _) => Ok(Mark::Host(lane.started())),
            (Lane::Cuda(lane), Some(Mark::Cuda(event))) => lane.record(event.clone()),
            (Lane::Cuda(lane), _) => lane.record(Rc::new(RawEvent::new()?)),
        }
    }

    /// Has this stream's further work come after a mark of the driver's.
    pub(crate) fn wait(&self, mark: &Mark) -> Result<()> {
        match (self, mark) {
            (Lane::Cuda(lane), Mark::Cuda(event)) => lane.raw()?.wait(event),
            _ => Ok(()),
        }
    }

    /// Blocks the host until this stream has passed a mark of its own.
    pub(crate) fn finish_up_to(&mut self, mark: &Mark) -> Result<()> {
        match (self, mark) {
            (Lane::Host(lane), Mark::Host(started)) => lane.finish_up_to(*started),
            (_, Mark::Cuda(event)) => event.synchronize(),
            _ => unreachable!("a mark is of its device's kind"),
        }
    }

    /// Blocks the host until all work is done.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            Lane::Host(lane) => lane.finish(),
            Lane::Cuda(lane) => lane.raw()?.synchronize(),
        }
    }

    /// Has the driver record from now on. Prepared operations have their scratch memory then.
    pub(crate) fn begin_capture(&mut self, backend: &Backend) -> Result<()> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => {
                lane.provide_scratch(cuda)?;
                lane.raw()?.begin_capture()
            }
            _ => Ok(()),
        }
    }

    /// Bytes of scratch memory that prepared operations need.
    pub(crate) fn scratch_bytes(&self) -> usize {
        match self {
            Lane::Host(_) => 0,
            Lane::Cuda(lane) => lane.scratch_bytes(),
        }
    }

    /// The driver's graph of what was recorded.
    pub(crate) fn end_capture(&self, backend: &Backend) -> Result<Option<RawGraph>> {
        match (self, backend) {
            (Lane::Cuda(lane), Backend::Cuda(cuda)) => lane.raw()?.end_capture(&cuda.kernels).map(Some),
            _ => Ok(None),
        }
    }

    /// Has the driver forget what was recorded.
    pub(crate) fn abandon_capture(&self) {
        if let Lane::Cuda(lane) = self
            && let Ok(raw) = lane.raw()
        {
            raw.abandon_capture();
        }
    }

    /// Launches a graph of the driver's.
    pub(crate) fn launch(&self, graph: &RawGraph) -> Result<()> {
        match self {
            Lane::Host(_) => unreachable!("a graph is of its device's kind"),
            Lane::Cuda(lane) => graph.launch(&*lane.raw()?),
        }
    }
}
