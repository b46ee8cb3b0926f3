//! Work of a captured region that its graph would not have, and that a replay would leave out in silence.

use std::collections::HashSet;

use device::{StreamId, TraceEvent};

use crate::error::{Error, Result};
use crate::manager::CudaGraphManager;
use crate::policy::Policy;
use crate::recording::Recording;

impl<P: Policy> CudaGraphManager<P> {
    /// Fails if a region that will be captured works on a stream that its graph does not include.
    pub(crate) fn check_streams(&self, recording: &Recording<P::Region>, trace: &[TraceEvent]) -> Result<()> {
        for (visit, _) in self.submitted(recording).filter(|(_, eager)| eager.is_none()) {
            let visit = &recording.order[visit];
            if let Some((operation, stream)) = left_out(&trace[visit.start..visit.end], visit.stream) {
                let stream = self.pool.device().stream_name(stream).to_string();
                return Err(Error::LeftOut { region: visit.name.to_string(), operation, stream });
            }
        }
        Ok(())
    }
}

/// The first work that a capture of these submissions would leave out, and its stream. A capture includes the stream that
/// it begins on. From the wait for an event on, it includes a stream that waits for an event recorded within the capture.
fn left_out(events: &[TraceEvent], begun_on: StreamId) -> Option<(&'static str, StreamId)> {
    let mut included = HashSet::from([begun_on]);
    let mut recorded = HashSet::new();
    for event in events {
        match event {
            TraceEvent::Operation { stream, name, .. } | TraceEvent::HostCopy { stream, name, .. } => {
                if !included.contains(stream) {
                    return Some((name, *stream));
                }
            }
            TraceEvent::Record { stream, event } => {
                if included.contains(stream) {
                    recorded.insert(*event);
                } else {
                    recorded.remove(event);
                }
            }
            TraceEvent::Wait { stream, event } => {
                if recorded.contains(event) {
                    included.insert(*stream);
                }
            }
        }
    }
    None
}
