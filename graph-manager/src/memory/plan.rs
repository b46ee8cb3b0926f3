//! The memory plan: a place for each buffer of a step, found from the step's list.
//!
//! A buffer that is used within one region is scratch. All regions share one scratch area per stream. A scratch buffer
//! of several streams lies in the compute stream's area. A buffer that outlives its region lies in its microbatch's
//! slot, or in one area planned over the whole step.
//!
//! Microbatches that share a slot use the same places. So the plan is made for the first visit of each [`RegionKey`]:
//! it **stands for** the visits of the other microbatches.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use device::{BufferId, Device, Home, StreamId};

use super::placement::{Interval, Placer};
use super::slots::slots;
use crate::keys::RegionKey;
use crate::options::Mempool;
use crate::program::{Lifetime, Program, Visit};

/// Names an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AreaKind {
    /// Buffers that live within one region, by stream. Those of several streams lie in the compute stream's
    /// area.
    Scratch(StreamId),
    /// Buffers that a microbatch saves in a chunk, by slot.
    Slot { home: Home, chunk: usize, slot: usize },
    /// Buffers that outlive one region, planned over the whole step.
    Step(Home),
}

impl AreaKind {
    /// The area's name in reports.
    pub(crate) fn name(self, device: &Device) -> String {
        let name = match self {
            AreaKind::Scratch(stream) => format!("scratch of {}", device.stream_name(stream)),
            AreaKind::Slot { chunk: 0, slot, .. } => format!("slot {slot}"),
            AreaKind::Slot { chunk, slot, .. } => format!("slot {slot} of chunk {chunk}"),
            AreaKind::Step(_) => "step".into(),
        };
        match self.home() {
            Home::Device => name,
            Home::Host => format!("{name} on the host"),
        }
    }

    /// The memory that the area lies in.
    pub(crate) fn home(self) -> Home {
        match self {
            AreaKind::Scratch(_) => Home::Device,
            AreaKind::Slot { home, .. } | AreaKind::Step(home) => home,
        }
    }
}

/// A buffer with an area, and the buffer's offset in the area, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedBuffer {
    pub(crate) area: AreaKind,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) buffer: BufferId,
}

/// The same for a buffer of the planned list, in less memory.
#[derive(Clone, Copy)]
struct Place {
    /// The number of the place's area; `UNPLANNED` without a place.
    area: u32,
    offset: usize,
}

const UNPLANNED: u32 = u32::MAX;

/// The buffers of an area that are placed together: the index and the lifetime of each.
type Group = Vec<(usize, Lifetime)>;

/// A memory plan.
pub(crate) struct Plan<R> {
    /// The microbatches of the list that the plan is made from, the planned list.
    pub(crate) microbatches: usize,
    /// By buffer of that list. Only buffers of visits that stand for their key have a place.
    places: Vec<Place>,
    /// The area of each number.
    kinds: Vec<AreaKind>,
    /// By key: the visit that stands for it.
    visits: HashMap<RegionKey<R>, u32>,
    /// By key: the buffers that are dead once the region is over. Filled only if dead buffers are poisoned.
    pub(crate) dead_after: HashMap<RegionKey<R>, Vec<PlacedBuffer>>,
    /// Bytes by area.
    pub(crate) areas: BTreeMap<AreaKind, usize>,
    /// Slots by chunk; `None` if memory is planned over the whole step.
    pub(crate) slots: Option<BTreeMap<usize, usize>>,
}

impl<R: Copy + Eq + Hash + std::fmt::Display + 'static> Plan<R> {
    /// Plans the steps of one mode. With slots, `programs` has the list of each number of microbatches, and the plan is
    /// made from the largest. Without, it has one list. `poisons`: fill `dead_after`.
    pub(crate) fn new(mempool: Mempool, programs: &[&Program<R>], compute: StreamId, poisons: bool) -> Plan<R> {
        let largest = programs.iter().max_by_key(|program| program.microbatches);
        let program = largest.unwrap_or_else(|| unreachable!("a plan is for a recorded step"));
        let slots = (mempool == Mempool::PerMicrobatch).then(|| slots(programs));
        let mut plan = Plan {
            microbatches: program.microbatches,
            places: vec![Place { area: UNPLANNED, offset: 0 }; program.buffers.len()],
            kinds: Vec::new(),
            visits: HashMap::with_capacity(program.visits.len()),
            dead_after: HashMap::new(),
            areas: BTreeMap::new(),
            slots,
        };
        let keys: Vec<RegionKey<R>> =
            program.visits.iter().map(|visit| plan.key(visit, program.microbatches)).collect();
        // One microbatch stands for all of its slot: they repeat each other, shifted in time.
        for (visit, key) in keys.iter().enumerate() {
            plan.visits.entry(*key).or_insert(visit as u32);
        }
        let (mut placer, poisoned) = (Placer::default(), poisons.then_some((&keys[..], compute)));
        let mut outlive: BTreeMap<AreaKind, Group> = BTreeMap::new();
        for (at, visit) in program.visits.iter().enumerate() {
            let key = &keys[at];
            if plan.visits[key] as usize != at {
                continue;
            }
            let (start, end) = (visit.positions().start, visit.positions().end);
            let inside = &program.visits[at + 1..visit.next()];
            let is_scratch = |used: &Lifetime| {
                // A buffer in use while an inner region runs is not scratch: the inner region has the same bytes.
                let meets = |inner: std::ops::Range<u32>| used.first < inner.end && inner.start <= used.last;
                let in_time = used.first >= start && used.last < end.max(start + 1);
                in_time && !inside.iter().any(|inner| meets(inner.positions()))
            };
            // All regions share the bytes of scratch, but it is placed for each visit on its own.
            let mut scratch: BTreeMap<StreamId, Group> = BTreeMap::new();
            for (index, _) in program.owned(at) {
                let used = program.used(index);
                let home = program.buffers[index].home;
                // Scratch of one stream is used in that stream's order.
                if let Some(used) = used.in_its_stream().filter(is_scratch).or_else(|| Some(used).filter(is_scratch))
                    && home == Home::Device
                {
                    // A buffer of several streams lives from the fork to the join, so from one operation of the compute
                    // stream to another.
                    scratch.entry(used.stream().unwrap_or(compute)).or_default().push((index, used));
                    continue;
                }
                let area = match (&visit.instance, key.slot) {
                    (Some(instance), Some(slot)) => AreaKind::Slot { home, chunk: instance.chunk, slot },
                    _ => AreaKind::Step(home),
                };
                outlive.entry(area).or_default().push((index, used));
            }
            for (stream, group) in scratch {
                plan.fill(program, &mut placer, AreaKind::Scratch(stream), &group, poisoned);
            }
        }
        for (area, mut group) in outlive {
            group.sort_unstable_by_key(|(index, _)| *index);
            plan.fill(program, &mut placer, area, &group, poisoned);
        }
        plan
    }

    /// A visit's region in the memory plan. With K slots, microbatch m of M has slot (M-1-m) mod K, so the last one is
    /// always in slot 0.
    pub(crate) fn key(&self, visit: &Visit<R>, microbatches: usize) -> RegionKey<R> {
        match (&self.slots, &visit.instance) {
            (Some(slots), Some(instance)) => {
                let slots = slots.get(&instance.chunk).copied().unwrap_or(1);
                let slot = (microbatches - 1 - instance.microbatch) % slots;
                RegionKey { region: instance.first, slot: Some(slot) }
            }
            _ => RegionKey { region: visit.region, slot: None },
        }
    }

    /// The visit of the planned list that stands for a region.
    pub(crate) fn visit(&self, key: &RegionKey<R>) -> Option<usize> {
        self.visits.get(key).map(|visit| *visit as usize)
    }

    /// The place and the name of a buffer, from the buffer's number in a visit of the planned list.
    pub(crate) fn placement(
        &self,
        program: &Program<R>,
        visit: usize,
        index: usize,
    ) -> Option<(PlacedBuffer, &'static str)> {
        let (buffer, name) = program.own(visit, index)?;
        Some((self.place_of(program, buffer)?, name))
    }

    /// The place of a buffer of the planned list.
    pub(crate) fn place_of(&self, program: &Program<R>, buffer: usize) -> Option<PlacedBuffer> {
        let Place { area, offset } = self.places[buffer];
        if area == UNPLANNED {
            return None;
        }
        let taken = program.buffers[buffer];
        Some(PlacedBuffer { area: self.kinds[area as usize], offset, bytes: taken.bytes, buffer: taken.buffer })
    }

    /// Gives a buffer the place of another.
    #[cfg(test)]
    pub(crate) fn misplace(&mut self, buffer: usize, of: usize) {
        self.places[buffer] = self.places[of];
    }

    /// Places buffers of one area. If dead buffers are poisoned, `poisoned` has the regions of the visits and the
    /// compute stream.
    fn fill(
        &mut self,
        program: &Program<R>,
        placer: &mut Placer,
        area: AreaKind,
        buffers: &[(usize, Lifetime)],
        poisoned: Option<(&[RegionKey<R>], StreamId)>,
    ) {
        let interval = |(index, used): &(usize, Lifetime)| {
            let (bytes, first, last) = (program.buffers[*index].bytes, used.first as usize, used.last as usize);
            Interval { bytes, first, last }
        };
        let intervals: Vec<Interval> = buffers.iter().map(interval).collect();
        let placed = placer.place(&intervals);
        let size = self.areas.entry(area).or_default();
        *size = placed.total.max(*size);
        let number = self.kinds.iter().position(|kind| *kind == area).unwrap_or_else(|| {
            self.kinds.push(area);
            self.kinds.len() - 1
        });
        for ((index, _), &offset) in buffers.iter().zip(&placed.offsets) {
            self.places[*index] = Place { area: number as u32, offset };
        }
        let Some((keys, compute)) = poisoned.filter(|_| area.home() == Home::Device) else { return };
        let occupied = placed.occupied(&intervals);
        for ((index, used), &offset) in buffers.iter().zip(&placed.offsets) {
            let (bytes, buffer) = (program.buffers[*index].bytes, program.buffers[*index].buffer);
            let Some(last) = program.innermost(used.last) else { continue };
            let rest = used.last as usize + 1..=program.visits[last].positions().end as usize;
            let inside = &program.visits[last + 1..program.visits[last].next()];
            // The scratch of regions inside is placed on its own, in the same bytes.
            let is_shared = matches!(area, AreaKind::Scratch(_))
                && inside.iter().any(|inner| inner.positions().start > used.last && !inner.positions().is_empty());
            let taken_over = is_shared || occupied.is_used(rest, offset, offset + bytes);
            if used.stream() == Some(compute) && !taken_over {
                let placement = PlacedBuffer { area, offset, bytes, buffer };
                self.dead_after.entry(keys[last]).or_default().push(placement);
            }
        }
    }
}
