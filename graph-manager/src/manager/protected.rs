//! Memory that a step must not write yet, because a copy of the memory is under way.

use std::ops::Range;

use device::{Event, Tensor};

use crate::keys::StepKey;
use crate::manager::CudaGraphManager;
use crate::policy::Policy;

/// Memory that is not written before an event.
pub(crate) struct Protected {
    pub(crate) until: Event,
    /// Addresses, in order and with nothing in common.
    pub(crate) ranges: Vec<Range<u64>>,
}

impl<P: Policy> CudaGraphManager<P> {
    /// Makes the next step that writes to one of `tensors` wait for an event on another stream, on each queue with the
    /// first entry that writes so. All other work of the step goes on beside what the event stands for.
    ///
    /// A graph with such an entry waits as a whole: it cannot contain a wait for work outside of it. If the step's first
    /// graph is one, this step is submitted without graphs instead.
    pub fn protect(&mut self, tensors: impl IntoIterator<Item = Tensor>, until: Event) {
        let ranges = merged(tensors.into_iter().map(|tensor| tensor.range()));
        self.protected = Some(Protected { until, ranges });
    }

    /// Whether a step with graphs would wait for the end of a protection before the step's first graph.
    pub(crate) fn would_wait_whole(&self, key: StepKey<P::Mode>, microbatches: usize) -> bool {
        let (state, Some(protected)) = (&self.states[&key], &self.protected) else { return false };
        let program = &state.programs[&microbatches];
        let first = (0..program.visits.len()).find(|visit| self.why_eager(program, *visit).is_none());
        // A step that captures is run as it is.
        let is_captured = !state.graphs.is_empty() && state.graphs.iter().all(Option::is_some);
        is_captured && first.is_some_and(|first| program.writers(&protected.ranges).has_in(program, first))
    }
}

/// The same addresses, in order and with nothing in common.
fn merged(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = ranges.filter(|range| !range.is_empty()).collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in all {
        match merged.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_become_one() {
        let ranges = [8..12, 0..4, 4..6, 10..11, 20..20, 30..31];
        assert_eq!(merged(ranges.into_iter()), [0..6, 8..12, 30..31]);
    }
}
