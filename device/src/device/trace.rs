//! Submissions that are noted instead of run. Plans are made from them.

use crate::{BufferId, Op, StreamId};

/// Something submitted while tracing, in submission order.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// An operation would have run.
    Operation {
        /// Its stream.
        stream: StreamId,
        /// Buffers it reads or writes.
        buffers: Vec<BufferId>,
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

/// Something submitted while tracing, as a [listener](crate::Device::listen) hears it: an operation with all its values.
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
