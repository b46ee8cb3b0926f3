//! Submissions that are noted instead of run. Plans are made from them.

use crate::{Accesses, BufferId, Op, StreamId, Tensor};

/// Something submitted while tracing, in submission order.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// An operation would have run.
    Operation {
        /// Its stream.
        stream: StreamId,
        /// Its name.
        name: &'static str,
        /// Buffers it reads or writes.
        buffers: Vec<BufferId>,
        /// What it writes.
        writes: Vec<Tensor>,
    },
    /// A copy between host and device would have run. A graph cannot have one.
    HostCopy {
        /// Its stream.
        stream: StreamId,
        /// What it is called.
        name: &'static str,
        /// The buffer that it reads or writes.
        buffers: Vec<BufferId>,
        /// What it writes.
        writes: Vec<Tensor>,
    },
    /// An event was recorded on a stream.
    Record {
        /// The stream.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
    /// A stream was made to wait for an event.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
}

impl TraceEvent {
    /// The event of an operation that was submitted to `stream`.
    pub(crate) fn operation(stream: StreamId, name: &'static str, accesses: Accesses) -> TraceEvent {
        TraceEvent::Operation { stream, name, buffers: accesses.buffers(), writes: accesses.writes }
    }

    /// The event of a copy between host and device on `stream`.
    pub(crate) fn host_copy(stream: StreamId, name: &'static str, accesses: Accesses) -> TraceEvent {
        TraceEvent::HostCopy { stream, name, buffers: accesses.buffers(), writes: accesses.writes }
    }
}

/// Something submitted while tracing, as a [listener](crate::Device::listen) hears it: an operation with all its values. It
/// hears nothing of the launch of a graph, and of copies between host and device.
pub enum Submission<'a> {
    /// An operation.
    Operation {
        /// Its stream.
        stream: StreamId,
        /// The operation.
        op: &'a Op,
        /// The region that it belongs to.
        scope: &'a str,
    },
    /// An event was recorded on a stream.
    Record {
        /// The stream.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
    /// A stream was made to wait for an event.
    Wait {
        /// The stream that waits.
        stream: StreamId,
        /// The event's number.
        event: u64,
    },
}

/// Hears what is submitted while tracing. It must not use the device.
pub type Listener = Box<dyn FnMut(Submission<'_>)>;
