//! The state of streams and events during a recording.

use std::collections::HashMap;

use device::StreamId;

/// Streams, by number.
#[derive(Default)]
pub(super) struct Streams {
    all: Vec<StreamState>,
    points: HashMap<u64, Point>,
    /// Submissions so far.
    pub(super) submitted: u64,
}

/// The state of a stream.
#[derive(Default)]
pub(super) struct StreamState {
    /// The position after the stream's last entry; 0 without one.
    end: u32,
    /// By stream: a position. All its entries before it are done before the next entry here.
    known: Vec<u32>,
    /// By stream: the count of submissions at its latest event that an entry here waits for, directly or through
    /// others.
    forked: Vec<u64>,
    /// Waits of the stream's next entry that are in no join yet.
    pub(super) pending: Vec<Reached>,
    /// The joins by the stream since the stream's last entry.
    pub(super) unspent: Vec<(StreamId, u32)>,
}

/// The streams reached by a wait for an event.
#[derive(Clone)]
pub(super) struct Reached {
    /// The stream of the event.
    pub(super) from: StreamId,
    /// Streams, each with a position: all its entries before the position are done.
    pub(super) joins: Vec<(StreamId, u32)>,
}

/// An event as last recorded.
#[derive(Default)]
struct Point {
    known: Vec<u32>,
    forked: Vec<u64>,
    joins: Vec<(StreamId, u32)>,
    from: Option<StreamId>,
}

fn raise<T: Copy + Ord + Default>(into: &mut Vec<T>, from: &[T]) {
    if into.len() < from.len() {
        into.resize(from.len(), T::default());
    }
    into.iter_mut().zip(from).for_each(|(into, from)| *into = (*into).max(*from));
}

fn set<T: Copy + Default>(into: &mut Vec<T>, at: StreamId, value: T) {
    let at = at.0 as usize;
    if into.len() <= at {
        into.resize(at + 1, T::default());
    }
    into[at] = value;
}

impl StreamState {
    /// The count of submissions at the latest event of `stream` that an entry here waits for.
    pub(super) fn forked_from(&self, stream: StreamId) -> u64 {
        self.forked.get(stream.0 as usize).copied().unwrap_or(0)
    }
}

impl Streams {
    pub(super) fn of(&mut self, stream: StreamId) -> &mut StreamState {
        let at = stream.0 as usize;
        if self.all.len() <= at {
            self.all.resize_with(at + 1, StreamState::default);
        }
        &mut self.all[at]
    }

    /// Whether the next entry of `stream` waits for all entries of `base` so far.
    pub(super) fn knows_all(&mut self, stream: StreamId, base: StreamId) -> bool {
        let end = self.of(base).end;
        end == 0 || self.of(stream).known.get(base.0 as usize).is_some_and(|known| *known >= end)
    }

    /// An entry at that position.
    pub(super) fn submit(&mut self, stream: StreamId, position: u32) {
        self.submitted += 1;
        let stream = self.of(stream);
        stream.end = position + 1;
        stream.unspent.clear();
    }

    /// Notes an event, recorded at the current length of the list.
    pub(super) fn record(&mut self, stream: StreamId, event: u64, length: u32) {
        self.submitted += 1;
        let (now, mut point) = (self.submitted, self.points.remove(&event).unwrap_or_default());
        let of = self.of(stream);
        point.known.clone_from(&of.known);
        point.forked.clone_from(&of.forked);
        point.joins.clear();
        point.joins.push((stream, length));
        point.joins.extend(&of.unspent);
        point.joins.extend(of.pending.iter().flat_map(|reached| &reached.joins));
        point.from = Some(stream);
        set(&mut point.known, stream, length);
        set(&mut point.forked, stream, now);
        self.points.insert(event, point);
    }

    /// Whether an event was recorded.
    pub(super) fn has_recorded(&self, event: u64) -> bool {
        self.points.contains_key(&event)
    }

    /// Notes that a stream waits for an event. Returns the streams that it now waits for. `None` if their work is
    /// already known to be done, or if the event was not recorded.
    pub(super) fn wait(&mut self, stream: StreamId, event: u64) -> Option<Reached> {
        self.submitted += 1;
        let point = self.points.remove(&event)?;
        let ends: Vec<u32> = self.all.iter().map(|stream| stream.end).collect();
        let of = self.of(stream);
        let known = |of: &StreamState, at: usize| of.known.get(at).copied().unwrap_or(0);
        let gains = point.known.iter().enumerate().any(|(at, until)| {
            at != stream.0 as usize && *until > known(of, at) && ends.get(at).is_some_and(|end| *end > known(of, at))
        });
        raise(&mut of.known, &point.known);
        raise(&mut of.forked, &point.forked);
        let from = point.from.unwrap_or(stream);
        let reached = gains.then(|| Reached { from, joins: point.joins.clone() });
        self.points.insert(event, point);
        reached
    }
}
