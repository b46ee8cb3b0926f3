//! The memory plan: where each buffer of a step lies, from a recording of the step.
//!
//! A buffer that is used within one region and on one stream is scratch; all regions share one scratch area per
//! stream. What lives longer lies in its microbatch's slot, or in one area planned over the whole step.

use std::collections::{BTreeMap, HashMap};

use device::{BufferId, Op, StreamId, TraceEvent};

use crate::by_time::ByTime;
use crate::deferred::DeferredKey;
use crate::kept::KeptKey;
use crate::placement::{Interval, place};
use crate::{GraphOptions, Region, StepShape};

/// One pass over a step with nothing run: its regions in order, the buffers they take, and what was submitted.
#[derive(Default)]
pub(crate) struct Recording {
    /// What forwards kept while recording.
    pub(crate) kept: HashMap<KeptKey, Box<dyn std::any::Any>>,
    /// What backwards put off while recording.
    pub(crate) deferred: HashMap<DeferredKey, Vec<Op>>,
    pub(crate) microbatches: usize,
    pub(crate) order: Vec<Visit>,
    pub(crate) buffers: Vec<RecordedBuffer>,
    pub(crate) events: Vec<TraceEvent>,
}

/// One region of the recorded order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) region: Region,
    /// Index of the first visit that is not inside this one.
    pub(crate) next: usize,
    /// Positions in `events`.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A buffer a region took.
#[derive(Clone, Debug)]
pub(crate) struct RecordedBuffer {
    /// Index in `order` of the region that took it.
    pub(crate) visit: usize,
    /// How many the region had taken before.
    pub(crate) index: usize,
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) buffer: BufferId,
    /// Position in `events`.
    pub(crate) taken_at: usize,
}

impl Recording {
    /// The regions that are submitted as such, not as a part of a captured one; each with why it is not captured, if so.
    pub(crate) fn submitted<'r>(
        &'r self,
        options: &'r GraphOptions,
    ) -> impl Iterator<Item = (Region, std::result::Result<(), &'static str>)> + 'r {
        let mut next = 0;
        self.order.iter().enumerate().filter_map(move |(at, visit)| {
            if at < next {
                return None;
            }
            let captured = visit.region.captured(options);
            if captured.is_ok() {
                next = visit.next;
            }
            Some((visit.region, captured))
        })
    }

    /// By chunk, most microbatches between their first region and their last at any time: the number of slots.
    pub(crate) fn in_flight(&self, shape: &StepShape) -> Vec<usize> {
        let mut spans: Vec<BTreeMap<usize, (usize, usize)>> = vec![BTreeMap::new(); shape.chunk_count()];
        for (at, visit) in self.order.iter().enumerate() {
            if let (Some(layer), Some(microbatch)) = (visit.region.layer(), visit.region.microbatch()) {
                spans[shape.chunk_of(layer)].entry(microbatch).or_insert((at, at)).1 = at;
            }
        }
        spans.iter().map(most_at_once).collect()
    }
}

/// How many of these spans, ends included, hold one position at most; at least 1.
fn most_at_once(spans: &BTreeMap<usize, (usize, usize)>) -> usize {
    let alive = |at: usize| spans.values().filter(|(first, last)| (*first..=*last).contains(&at)).count();
    // Only where a span begins can there be more than before.
    spans.values().map(|(first, _)| alive(*first)).max().unwrap_or(1)
}

/// The areas a plan is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AreaKind {
    /// What does not outlive its region, on one stream.
    Scratch(StreamId),
    /// What a microbatch keeps of a chunk, by slot.
    Slot {
        /// The chunk.
        chunk: usize,
        /// The slot.
        slot: usize,
    },
    /// What lives longer than a region, planned over the whole step.
    Step,
}

impl std::fmt::Display for AreaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AreaKind::Scratch(stream) => write!(f, "scratch of stream {}", stream.0),
            AreaKind::Slot { chunk: 0, slot } => write!(f, "slot {slot}"),
            AreaKind::Slot { chunk, slot } => write!(f, "slot {slot} of chunk {chunk}"),
            AreaKind::Step => write!(f, "step"),
        }
    }
}

/// Bytes of one area.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryUse {
    /// `scratch of stream n`, `slot n` or `step`.
    pub area: String,
    /// Its size.
    pub bytes: usize,
}

/// Where a buffer lies.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) area: AreaKind,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) name: &'static str,
    pub(crate) buffer: BufferId,
}

/// A memory plan.
pub(crate) struct Plan {
    /// By region (of its slot) and number within the region.
    placements: HashMap<(Region, usize), Placement>,
    /// Buffers whose memory is free once a region is over.
    dead_after: HashMap<Region, Vec<Placement>>,
    pub(crate) areas: BTreeMap<AreaKind, usize>,
    /// By chunk.
    pub(crate) slots: Vec<usize>,
    /// Whether what outlives a region lies in slots.
    by_slot: bool,
    shape: StepShape,
}

impl Plan {
    /// For a step as recorded, with this many slots for each chunk, as many as its microbatches in flight or more.
    pub(crate) fn new(
        recording: &Recording,
        slots: Vec<usize>,
        options: &GraphOptions,
        shape: &StepShape,
        compute: StreamId,
    ) -> Plan {
        let by_slot = options.slots();
        let mut plan = Plan {
            placements: HashMap::new(),
            dead_after: HashMap::new(),
            areas: BTreeMap::new(),
            slots,
            by_slot,
            shape: shape.clone(),
        };
        let uses = lifetimes(&recording.events, compute);
        // One microbatch stands for all of its slot: they repeat each other, shifted in time.
        let mut stands_for: HashMap<Region, usize> = HashMap::new();
        let mut scratch: BTreeMap<(usize, StreamId), Vec<(&RecordedBuffer, Use)>> = BTreeMap::new();
        let mut lasting: BTreeMap<AreaKind, Vec<(&RecordedBuffer, Use)>> = BTreeMap::new();
        for buffer in &recording.buffers {
            let visit = recording.order[buffer.visit];
            let key = plan.canonical(visit.region, recording.microbatches);
            if *stands_for.entry(key).or_insert(buffer.visit) != buffer.visit {
                continue;
            }
            let taken = Use { first: buffer.taken_at, last: buffer.taken_at, stream: Some(compute) };
            let used = uses.get(&buffer.buffer).copied().unwrap_or(taken);
            let inside = used.first >= visit.start && used.last < visit.end.max(visit.start + 1);
            // Scratch of all regions shares its bytes: what a region keeps while another runs inside it is none.
            let mut inner = recording.order[buffer.visit + 1..visit.next].iter();
            let spans = inner.any(|inner| used.first < inner.end && inner.start <= used.last);
            if inside && !spans {
                // What several streams use lives from the fork to the join, and so between works of the compute stream.
                let stream = used.stream.unwrap_or(compute);
                scratch.entry((buffer.visit, stream)).or_default().push((buffer, used));
                continue;
            }
            let area = match (key.layer(), key.microbatch()) {
                (Some(layer), Some(slot)) if by_slot => AreaKind::Slot { chunk: shape.chunk_of(layer), slot },
                _ => AreaKind::Step,
            };
            lasting.entry(area).or_default().push((buffer, used));
        }
        for ((_, stream), buffers) in &scratch {
            plan.fill(recording, AreaKind::Scratch(*stream), buffers, compute);
        }
        for (area, buffers) in &lasting {
            plan.fill(recording, *area, buffers, compute);
        }
        plan
    }

    /// The region that stands for this one: that of its slot, or itself.
    pub(crate) fn canonical(&self, region: Region, microbatches: usize) -> Region {
        match (region.layer(), region.microbatch()) {
            (Some(layer), Some(microbatch)) if self.by_slot => {
                let slots = self.slots[self.shape.chunk_of(layer)];
                region.with_microbatch((microbatches - 1 - microbatch) % slots)
            }
            _ => region,
        }
    }

    pub(crate) fn placement(&self, region: Region, index: usize) -> Option<&Placement> {
        self.placements.get(&(region, index))
    }

    pub(crate) fn dead_after(&self, region: Region) -> &[Placement] {
        self.dead_after.get(&region).map_or(&[], Vec::as_slice)
    }

    fn fill(&mut self, recording: &Recording, area: AreaKind, buffers: &[(&RecordedBuffer, Use)], compute: StreamId) {
        let intervals: Vec<Interval> = buffers
            .iter()
            .map(|(buffer, used)| Interval { bytes: buffer.bytes, first: used.first, last: used.last })
            .collect();
        let (offsets, total) = place(&intervals);
        let size = self.areas.entry(area).or_default();
        *size = total.max(*size);
        let mut lives = ByTime::default();
        for (i, interval) in intervals.iter().enumerate() {
            lives.insert(i, interval.first, interval.last);
        }
        for (i, ((buffer, used), &offset)) in buffers.iter().zip(&offsets).enumerate() {
            let placement = Placement { area, offset, bytes: buffer.bytes, name: buffer.name, buffer: buffer.buffer };
            let visit = recording.order[buffer.visit].region;
            let key = self.canonical(visit, recording.microbatches);
            self.placements.insert((key, buffer.index), placement.clone());
            let Some(last) = innermost(recording, used.last) else { continue };
            let taken_over = lives
                .between(used.last + 1, last.end)
                .any(|j| j != i && offsets[j] < offset + buffer.bytes && offset < offsets[j] + intervals[j].bytes);
            if used.stream == Some(compute) && !taken_over {
                let key = self.canonical(last.region, recording.microbatches);
                self.dead_after.entry(key).or_default().push(placement);
            }
        }
    }
}

/// The innermost region that holds a position.
fn innermost(recording: &Recording, position: usize) -> Option<Visit> {
    let begun = recording.order.partition_point(|visit| visit.start <= position);
    recording.order[..begun].iter().rev().find(|visit| position < visit.end).copied()
}

/// When a buffer is in use, in positions of the trace.
#[derive(Clone, Copy, Debug)]
struct Use {
    first: usize,
    last: usize,
    /// The stream of all its uses, if it is one.
    stream: Option<StreamId>,
}

/// First and last use of every buffer. Work on a side stream may run as early as the event its stream waited for and as
/// late as the compute stream's wait for it; without such a wait, to the end.
fn lifetimes(events: &[TraceEvent], compute: StreamId) -> HashMap<BufferId, Use> {
    let mut uses: HashMap<BufferId, Use> = HashMap::new();
    let mut recorded: HashMap<u64, (StreamId, usize)> = HashMap::new();
    let mut forked_at: HashMap<StreamId, usize> = HashMap::new();
    // Uses on side streams that the compute stream has not waited for yet.
    let mut open: Vec<(StreamId, usize, BufferId)> = Vec::new();
    let touch = |uses: &mut HashMap<BufferId, Use>, buffer, stream, first, last| {
        let entry = uses.entry(buffer).or_insert(Use { first, last, stream: Some(stream) });
        entry.first = entry.first.min(first);
        entry.last = entry.last.max(last);
        if entry.stream != Some(stream) {
            entry.stream = None;
        }
    };
    for (position, event) in events.iter().enumerate() {
        match event {
            TraceEvent::Operation { stream, buffers } => {
                let first = if *stream == compute { position } else { forked_at.get(stream).copied().unwrap_or(0) };
                for &buffer in buffers {
                    touch(&mut uses, buffer, *stream, first, position);
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
                    // What another side stream has done may be as early as that stream's own fork.
                    let since = if from == compute { at } else { forked_at.get(&from).copied().unwrap_or(0) };
                    forked_at.insert(*stream, since.min(position));
                    continue;
                }
                open.retain(|&(side, submitted, buffer)| {
                    let done = side == from && submitted < at;
                    if done {
                        touch(&mut uses, buffer, side, submitted, position);
                    }
                    !done
                });
            }
        }
    }
    for (side, submitted, buffer) in open {
        touch(&mut uses, buffer, side, submitted, events.len());
    }
    uses
}
