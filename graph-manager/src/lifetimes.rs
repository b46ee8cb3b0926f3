//! When each buffer of a recorded step is in use.

use std::collections::HashMap;

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

/// First and last use of every buffer. Work on a side stream may start as early as the event that its stream waited for,
/// and may end as late as the compute stream's wait for it. Without such a wait it may last to the end of the step.
pub(crate) fn lifetimes(events: &[TraceEvent], compute: StreamId) -> HashMap<BufferId, Lifetime> {
    let mut uses: Vec<(BufferId, StreamId, usize, usize)> = Vec::new();
    let mut in_stream: HashMap<BufferId, (usize, usize)> = HashMap::new();
    let mut recorded: HashMap<u64, (StreamId, usize)> = HashMap::new();
    let mut forked_at: HashMap<StreamId, usize> = HashMap::new();
    // Uses on side streams that the compute stream has not waited for yet.
    let mut open: Vec<(StreamId, usize, BufferId)> = Vec::new();
    for (position, event) in events.iter().enumerate() {
        match event {
            TraceEvent::Operation { stream, buffers, .. } => {
                let first = if *stream == compute { position } else { forked_at.get(stream).copied().unwrap_or(0) };
                for &buffer in buffers {
                    uses.push((buffer, *stream, first, position));
                    in_stream.entry(buffer).or_insert((position, position)).1 = position;
                    if *stream != compute {
                        open.push((*stream, position, buffer));
                    }
                }
            }
            TraceEvent::Record { stream, event } => {
                recorded.insert(*event, (*stream, position));
            }
            TraceEvent::Wait { stream, event } => {
                let Some(&(from, at)) = recorded.get(event) else { continue };
                if *stream != compute {
                    // Work of another side stream may be as early as that stream's own fork.
                    let since = if from == compute { at } else { forked_at.get(&from).copied().unwrap_or(0) };
                    forked_at.insert(*stream, since.min(position));
                    continue;
                }
                open.retain(|&(side, submitted, buffer)| {
                    let done = side == from && submitted < at;
                    if done {
                        uses.push((buffer, side, submitted, position));
                    }
                    !done
                });
            }
        }
    }
    uses.extend(open.into_iter().map(|(side, submitted, buffer)| (buffer, side, submitted, events.len())));
    let mut lifetimes: HashMap<BufferId, Lifetime> = HashMap::new();
    for (buffer, stream, first, last) in uses {
        let in_stream = in_stream[&buffer];
        let all = lifetimes.entry(buffer).or_insert(Lifetime { first, last, stream: Some(stream), in_stream });
        (all.first, all.last) = (all.first.min(first), all.last.max(last));
        all.stream = all.stream.filter(|known| *known == stream);
    }
    lifetimes
}
