//! Submissions noted instead of run, for plans of what would be.

use super::Device;
use crate::{BufferId, StreamId};

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

impl Device {
    /// From now on submissions are noted instead of run.
    pub fn begin_trace(&self) {
        self.core().trace = Some(Vec::new());
    }

    /// Number of events noted so far.
    pub fn trace_position(&self) -> usize {
        self.peek().trace.as_ref().map_or(0, Vec::len)
    }

    /// Ends the trace and returns what was noted.
    pub fn end_trace(&self) -> Vec<TraceEvent> {
        self.core().trace.take().unwrap_or_default()
    }
}
