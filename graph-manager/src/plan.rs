//! The memory plan: where each buffer of a step lies, from a recording of the step.
//!
//! A buffer that is used within one region is scratch. All regions share one scratch area per stream. A buffer of several
//! streams is in the compute stream's.
//! A buffer that outlives its region lies in its microbatch's slot, or in one area planned over the whole step.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use device::{BufferId, StreamId};

use crate::keys::RegionKey;
use crate::lifetimes::Lifetime;
use crate::options::Mempool;
use crate::placement::{Interval, place};
use crate::policy::Policy;
use crate::recording::{RecordedBuffer, Recording};
use crate::slots::slots;

/// Names an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AreaKind {
    /// Buffers that do not outlive their region, by stream. Those of several streams are the compute stream's.
    Scratch(StreamId),
    /// What a microbatch saves in a chunk, by slot.
    Slot { chunk: usize, slot: usize },
    /// Buffers that outlive their region, planned over the whole step.
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

/// Where a buffer lies.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) area: AreaKind,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) name: &'static str,
    pub(crate) buffer: BufferId,
}

/// A buffer, and when it is in use.
type Used<'r> = (&'r RecordedBuffer, Lifetime);

/// A memory plan.
pub(crate) struct Plan<R> {
    /// By region and number within the region.
    pub(crate) placements: HashMap<(RegionKey<R>, usize), Placement>,
    /// Buffers whose memory is free once a region is over.
    pub(crate) dead_after: HashMap<RegionKey<R>, Vec<Placement>>,
    pub(crate) areas: BTreeMap<AreaKind, usize>,
    /// Slots by chunk; `None` where memory is planned over the whole step.
    pub(crate) slots: Option<BTreeMap<usize, usize>>,
}

impl<R: Copy + Eq + Hash + std::fmt::Display + 'static> Plan<R> {
    /// For steps as recorded, which differ in the number of microbatches: several in slots, or one over the whole step. In
    /// slots, the largest stands for all.
    pub(crate) fn new(
        mempool: Mempool,
        recordings: &[&Recording<R>],
        policy: &impl Policy<Region = R>,
        compute: StreamId,
    ) -> Plan<R> {
        let largest = recordings.iter().max_by_key(|recording| recording.microbatches);
        let recording = largest.unwrap_or_else(|| unreachable!("a plan is for a recorded step"));
        let slots = (mempool == Mempool::PerMicrobatch).then(|| slots(recordings, policy));
        let mut plan = Plan { placements: HashMap::new(), dead_after: HashMap::new(), areas: BTreeMap::new(), slots };
        let keys: Vec<RegionKey<R>> =
            recording.order.iter().map(|visit| plan.key(policy, visit.region, recording.microbatches)).collect();
        // One microbatch stands for all of its slot: they repeat each other, shifted in time.
        let mut stands_for: HashMap<RegionKey<R>, usize> = HashMap::new();
        // By area. All regions share the bytes of scratch, but it is placed for each visit on its own.
        let mut groups: BTreeMap<(AreaKind, Option<usize>), Vec<Used<'_>>> = BTreeMap::new();
        for buffer in &recording.buffers {
            let (visit, key) = (&recording.order[buffer.visit], keys[buffer.visit]);
            if *stands_for.entry(key).or_insert(buffer.visit) != buffer.visit {
                continue;
            }
            let used = recording.used(buffer, compute);
            let is_scratch = |used: &Lifetime| {
                let inside = used.first >= visit.start && used.last < visit.end.max(visit.start + 1);
                // A buffer in use while an inner region runs is not scratch: the inner region has the same bytes.
                let mut inner = recording.order[buffer.visit + 1..visit.next].iter();
                inside && !inner.any(|inner| used.first < inner.end && inner.start <= used.last)
            };
            // Scratch of one stream is used in that stream's order.
            let in_its_stream = used.in_its_stream().filter(is_scratch);
            let (used, scratch) = (in_its_stream.unwrap_or(used), in_its_stream.is_some() || is_scratch(&used));
            let group = match (policy.instance(visit.region), key.slot) {
                // A buffer of several streams lives from the fork to the join, so from one operation of the compute stream
                // to another.
                _ if scratch => (AreaKind::Scratch(used.stream.unwrap_or(compute)), Some(buffer.visit)),
                (Some(instance), Some(slot)) => (AreaKind::Slot { chunk: instance.chunk, slot }, None),
                _ => (AreaKind::Step, None),
            };
            groups.entry(group).or_default().push((buffer, used));
        }
        for ((area, _), buffers) in &groups {
            plan.fill(recording, &keys, *area, buffers, compute);
        }
        plan
    }

    /// The region as memory sees it. Microbatch m of M has slot (M-1-m) mod K, so the last is always in slot 0.
    pub(crate) fn key(&self, policy: &impl Policy<Region = R>, region: R, microbatches: usize) -> RegionKey<R> {
        match (&self.slots, policy.instance(region)) {
            (Some(slots), Some(instance)) => {
                let slots = slots.get(&instance.chunk).copied().unwrap_or(1);
                let slot = (microbatches - 1 - instance.microbatch) % slots;
                RegionKey { region: instance.first, slot: Some(slot) }
            }
            _ => RegionKey { region, slot: None },
        }
    }

    fn fill(
        &mut self,
        recording: &Recording<R>,
        keys: &[RegionKey<R>],
        area: AreaKind,
        buffers: &[Used<'_>],
        compute: StreamId,
    ) {
        let intervals: Vec<Interval> = buffers
            .iter()
            .map(|(buffer, used)| Interval { bytes: buffer.bytes, first: used.first, last: used.last })
            .collect();
        let placed = place(&intervals);
        let size = self.areas.entry(area).or_default();
        *size = placed.total.max(*size);
        for ((buffer, used), &offset) in buffers.iter().zip(&placed.offsets) {
            let placement = Placement { area, offset, bytes: buffer.bytes, name: buffer.name, buffer: buffer.buffer };
            self.placements.insert((keys[buffer.visit], buffer.index), placement.clone());
            let Some(last) = recording.innermost(used.last) else { continue };
            let rest = used.last + 1..=recording.order[last].end;
            let taken_over = placed.occupied.is_used(rest, offset, offset + buffer.bytes);
            if used.stream == Some(compute) && !taken_over {
                self.dead_after.entry(keys[last]).or_default().push(placement);
            }
        }
    }
}
