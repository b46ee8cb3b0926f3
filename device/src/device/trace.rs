//! Submissions that are noted instead of run. Plans are made from them.

use std::rc::Rc;

use crate::{Accesses, Op, StreamId};

/// Something submitted while tracing, in submission order.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// An operation would have run.
    Operation {
        /// The work's stream.
        stream: StreamId,
        /// The operation.
        op: Box<Op>,
        /// The tensors that the operation reads and writes.
        accesses: Accesses,
        /// The scope that the operation belongs to.
        scope: Rc<str>,
    },
    /// A copy between host and device would have run. A graph cannot have one.
    HostCopy {
        /// The work's stream.
        stream: StreamId,
        /// The work's name.
        name: &'static str,
        /// The tensor that the copy reads or writes.
        accesses: Accesses,
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

/// Something submitted while tracing, as a [listener](crate::Device::listen) hears it: an operation with all its
/// values. Launches of graphs, and copies between host and device, are not among them.
pub enum Submission<'a> {
    /// An operation.
    Operation {
        /// The work's stream.
        stream: StreamId,
        /// The operation.
        op: &'a Op,
        /// The region that the operation belongs to.
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

/// Hears submissions while tracing. It must not use the device.
pub type Listener = Box<dyn FnMut(Submission<'_>)>;
