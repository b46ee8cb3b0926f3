//! When each buffer of a recorded step is in use.

use std::collections::{HashMap, VecDeque};

use device::{BufferId, StreamId, TraceEvent};

/// When a buffer is in use, in positions of the trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// The stream of all its uses; `None` where several streams use it.
    pub(crate) stream: Option<StreamId>,
    /// Its first and last use in the order of that stream. Only work of the same stream may go by these.
    pub(crate) in_stream: (usize, usize),
}

impl Lifetime {
    /// Makes it last to this position at least.
    pub(crate) fn keep_until(&mut self, position: usize) {
        self.last = self.last.max(position);
        self.in_stream.1 = self.in_stream.1.max(position);
    }

    /// As other buffers of its only stream see it.
    pub(crate) fn in_its_stream(self) -> Option<Lifetime> {
        self.stream.map(|_| Lifetime { first: self.in_stream.0, last: self.in_stream.1, ..self })
    }
}

/// How far each stream has come: all that was submitted to it before that position is done.
type Done = HashMap<StreamId, usize>;

/// First and last use of every buffer. Work on a side stream may start once all is done that its stream waited for. It
/// may go on until the compute stream waits for it, directly or through another stream. Without such a wait it may last to
/// the end of the step.
pub(crate) fn lifetimes(events: &[TraceEvent], compute: StreamId) -> HashMap<BufferId, Lifetime> {
    let mut uses: Vec<(BufferId, StreamId, usize, usize)> = Vec::new();
    let mut in_stream: HashMap<BufferId, (usize, usize)> = HashMap::new();
    // What is done before the next work of a stream, and when an event is reached.
    let mut before: HashMap<StreamId, Done> = HashMap::new();
    let mut reached: HashMap<u64, Done> = HashMap::new();
    // Uses on side streams that the compute stream has not waited for yet, in the order of each stream.
    let mut open: HashMap<StreamId, VecDeque<(usize, BufferId)>> = HashMap::new();
    for (position, event) in events.iter().enumerate() {
        match event {
            TraceEvent::Operation { stream, buffers, .. } | TraceEvent::HostCopy { stream, buffers, .. } => {
                let forked_at = || before.get(stream)?.get(&compute).copied();
                let first = if *stream == compute { position } else { forked_at().unwrap_or(0) };
                for &buffer in buffers {
                    uses.push((buffer, *stream, first, position));
                    in_stream.entry(buffer).or_insert((position, position)).1 = position;
                    if *stream != compute {
                        open.entry(*stream).or_default().push_back((position, buffer));
                    }
                }
            }
            TraceEvent::Record { stream, event } => {
                let mut done = before.get(stream).cloned().unwrap_or_default();
                done.insert(*stream, position);
                reached.insert(*event, done);
            }
            TraceEvent::Wait { stream, event } => {
                let Some(reached) = reached.get(event) else { continue };
                let done = before.entry(*stream).or_default();
                for (&stream, &position) in reached {
                    let known = done.entry(stream).or_default();
                    *known = position.max(*known);
                }
                if *stream != compute {
                    continue;
                }
                for (&side, open) in &mut open {
                    let end = done.get(&side).copied().unwrap_or(0);
                    let count = open.partition_point(|(submitted, _)| *submitted < end);
                    uses.extend(open.drain(..count).map(|(submitted, buffer)| (buffer, side, submitted, position)));
                }
            }
        }
    }
    for (side, open) in open {
        uses.extend(open.into_iter().map(|(submitted, buffer)| (buffer, side, submitted, events.len())));
    }
    let mut lifetimes: HashMap<BufferId, Lifetime> = HashMap::new();
    for (buffer, stream, first, last) in uses {
        let in_stream = in_stream[&buffer];
        let all = lifetimes.entry(buffer).or_insert(Lifetime { first, last, stream: Some(stream), in_stream });
        (all.first, all.last) = (all.first.min(first), all.last.max(last));
        all.stream = all.stream.filter(|known| *known == stream);
    }
    lifetimes
}
