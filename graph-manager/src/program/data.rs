//! The list of a step.

use std::ops::Range;
use std::rc::Rc;

use device::ops::CollectiveKind;
use device::{BufferId, Communicator, DType, Home, Op, Shape, StreamId, Tensor};

use super::body::{Body, Entry, Item, Work};
use super::lifetime::Lifetime;
use crate::error::{Error, Result};
use crate::policy::Instance;

/// The recorded list of one kind of step with a number of microbatches.
pub(crate) struct Program<R> {
    pub(crate) microbatches: usize,
    /// The regions' visits, in the order of the visits' beginnings.
    pub(crate) visits: Vec<Visit<R>>,
    /// The submissions outside of all regions, and the places of the outermost regions.
    pub(super) outermost: Held,
    pub(super) bodies: Vec<Body>,
    /// The tables of all visits, one after the other. A table has, for each number that a body uses for a buffer, the
    /// visit's buffer: an index in `buffers`, or one in `outside` marked with [`OUTSIDE`].
    pub(super) tables: Vec<u32>,
    /// The buffers that regions take, in that order.
    pub(crate) buffers: Vec<Taken>,
    /// By the number of a buffer on the device, less that of the first: its index in `buffers`.
    pub(super) by_number: Vec<u32>,
    pub(super) first_number: usize,
    /// Other buffers that the step uses, such as weights.
    pub(super) outside: Vec<BufferId>,
    pub(super) joins: Vec<Join>,
    /// Queues that entries and regions are on. The first is the compute stream.
    pub(super) queues: Vec<StreamId>,
    /// The number of entries and joins.
    pub(super) length: u32,
    /// The waits of entries, besides waits for the entry before on the same queue. No wait follows from others.
    pub(crate) waits: Vec<Wait>,
    /// By index in `buffers`.
    pub(super) lifetimes: Vec<Lifetime>,
    /// Indices in `buffers` of the buffers that the step's code returned.
    pub(super) returned: Vec<u32>,
}

/// A region's turn in a step.
pub(crate) struct Visit<R> {
    pub(crate) region: R,
    /// The region's microbatch, if the region belongs to one.
    pub(crate) instance: Option<Instance<R>>,
    /// The region in words.
    pub(crate) name: Rc<str>,
    /// Index of the visit directly outside of this visit.
    pub(super) outer: u32,
    /// Index of the first later visit that is not inside this visit.
    pub(super) next: u32,
    /// The first position of the visit's submissions.
    pub(super) start: u32,
    pub(super) end: u32,
    /// The stream that the region runs on.
    pub(crate) stream: StreamId,
    /// The range of `buffers` that the region and the regions inside take.
    pub(super) taken: (u32, u32),
    pub(super) held: Held,
}

/// The number of a body, and the index at which the visit's table begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) body: u32,
    pub(super) table: u32,
}

/// A buffer that a region takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    /// The memory that the buffer is planned in.
    pub(crate) home: Home,
    /// The first address, in the recording's own addresses.
    pub(crate) address: u64,
    pub(crate) buffer: BufferId,
    /// Index of the visit that takes the buffer.
    pub(super) visit: u32,
}

/// An entry that waits for one of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The position of the waiting entry.
    pub(crate) position: u32,
    /// The position of the entry that is waited for.
    pub(crate) on: u32,
}

/// Stands for no index. As a visit: outside of all visits.
pub(super) const NONE: u32 = u32::MAX;

/// Marks an index in a table as one of `outside`.
pub(super) const OUTSIDE: u32 = 1 << 31;

impl Taken {
    /// Index of the visit that takes the buffer.
    pub(crate) fn visit(&self) -> usize {
        self.visit as usize
    }
}

impl<R> Visit<R> {
    /// Index of the visit directly outside of this visit.
    pub(crate) fn outer(&self) -> Option<usize> {
        (self.outer != NONE).then_some(self.outer as usize)
    }

    /// Index of the first later visit that is not inside this visit.
    pub(crate) fn next(&self) -> usize {
        self.next as usize
    }

    /// Positions of the visit's submissions.
    pub(crate) fn positions(&self) -> Range<u32> {
        self.start..self.end
    }
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Whether a region has other regions inside.
    pub(crate) fn is_composite(&self, visit: usize) -> bool {
        self.visits[visit].next() > visit + 1
    }

    /// Whether two regions, each with the regions inside, submit the same on other buffers of the step.
    pub(crate) fn does_the_same(&self, one: usize, other: usize) -> bool {
        let bodies = |visit: usize| self.visits[visit..self.visits[visit].next()].iter().map(|visit| visit.held.body);
        bodies(one).eq(bodies(other))
    }

    /// The number of entries between two positions; joins do not count.
    pub(crate) fn entries(&self, positions: Range<u32>) -> usize {
        let before = |position: u32| self.joins.partition_point(|join| join.position < position);
        positions.len() - (before(positions.end) - before(positions.start))
    }

    /// The number of entries of the whole step.
    pub(crate) fn operations(&self) -> usize {
        self.entries(0..self.length)
    }

    /// Bytes of the buffers that a region takes, the buffers of regions inside included.
    pub(crate) fn bytes(&self, visit: usize) -> usize {
        let (start, end) = self.visits[visit].taken;
        self.buffers[start as usize..end as usize].iter().map(|buffer| buffer.bytes).sum()
    }

    /// The index of a buffer that a region takes. `None` for others, such as weights.
    pub(crate) fn taken(&self, buffer: BufferId) -> Option<usize> {
        let number = buffer.number().checked_sub(self.first_number)?;
        self.by_number.get(number).copied().filter(|index| *index != NONE).map(|index| index as usize)
    }

    /// The buffer of that number of a visit: its index in `buffers` and its name.
    pub(crate) fn own(&self, visit: usize, index: usize) -> Option<(usize, &'static str)> {
        let Held { body, table } = self.visits[visit].held;
        let own = self.bodies[body as usize].own.get(index)?;
        Some((self.tables[(table + own.local) as usize] as usize, own.name))
    }

    /// The buffers that a visit takes, in that order: index and name of each.
    pub(crate) fn owned(&self, visit: usize) -> impl Iterator<Item = (usize, &'static str)> {
        let Held { body, table } = self.visits[visit].held;
        let own = self.bodies[body as usize].own.iter();
        own.map(move |own| (self.tables[(table + own.local) as usize] as usize, own.name))
    }

    /// The name of a buffer that an earlier visit takes, and that this or a later visit uses, if there is one.
    pub(crate) fn taken_before_and_used_from(&self, visit: usize) -> Option<&'static str> {
        let tables = self.visits[visit..].iter().flat_map(|Visit { held, .. }| {
            let mentions = self.bodies[held.body as usize].mentions;
            &self.tables[held.table as usize..(held.table + mentions) as usize]
        });
        let used: std::collections::HashSet<usize> = tables.map(|buffer| *buffer as usize).collect();
        let mut before = (0..visit).flat_map(|visit| self.owned(visit));
        before.find(|(buffer, _)| used.contains(buffer)).map(|(_, name)| name)
    }

    /// The buffers in the order of taking, each with a number among the buffers of the visit.
    pub(crate) fn taken_in_order(&self) -> impl Iterator<Item = (&Taken, usize)> {
        let mut counts = vec![0; self.visits.len()];
        self.buffers.iter().map(move |buffer| {
            let count: &mut usize = &mut counts[buffer.visit()];
            *count += 1;
            (buffer, *count - 1)
        })
    }

    /// The time in which a buffer is in use.
    pub(crate) fn used(&self, buffer: usize) -> Lifetime {
        self.lifetimes[buffer]
    }

    /// The buffers that the step uses and no region takes, such as weights.
    #[cfg(feature = "trainer-ops")]
    pub(crate) fn outside(&self) -> &[BufferId] {
        &self.outside
    }

    /// Regions of two microbatches that use a buffer, if the second microbatch begins to use the buffer before the
    /// first one ends. The first region is the first microbatch's last one.
    #[cfg(feature = "trainer-ops")]
    pub(crate) fn in_flight_with(&self, buffer: BufferId) -> Option<[&str; 2]> {
        let outside = OUTSIDE | self.outside.iter().position(|other| *other == buffer)? as u32;
        // By microbatch: the first and the last visit.
        let mut spans: Vec<(usize, &Visit<R>, &Visit<R>)> = Vec::new();
        for visit in &self.visits {
            let Some(Instance { microbatch, .. }) = visit.instance else { continue };
            let Held { body, table } = visit.held;
            let mentions = self.bodies[body as usize].mentions;
            if !self.tables[table as usize..(table + mentions) as usize].contains(&outside) {
                continue;
            }
            match spans.iter_mut().find(|(of, ..)| *of == microbatch) {
                Some((_, _, last)) => *last = visit,
                None => spans.push((microbatch, visit, visit)),
            }
        }
        let overlap = spans.windows(2).find(|pair| pair[1].1.start < pair[0].2.end)?;
        Some([&overlap[0].2.name, &overlap[1].1.name])
    }

    /// Whether a buffer is in use up to the end of the step.
    pub(crate) fn is_kept(&self, buffer: usize) -> bool {
        self.lifetimes[buffer].last >= self.length
    }

    /// Whether the step's code returned a buffer.
    pub(crate) fn is_returned(&self, buffer: usize) -> bool {
        self.returned.contains(&(buffer as u32))
    }

    /// Index of the innermost region that contains a position.
    pub(crate) fn innermost(&self, position: u32) -> Option<usize> {
        let begun = self.visits.partition_point(|visit| visit.start <= position);
        let mut at = begun.checked_sub(1)?;
        while position >= self.visits[at].end {
            at = self.visits[at].outer()?;
        }
        Some(at)
    }

    /// Whether the step can be planned: each region comes once, and belongs to a microbatch that the step has.
    pub(crate) fn check(&self) -> Result<()> {
        let mut seen = std::collections::HashSet::with_capacity(self.visits.len());
        for Visit { region, name, instance, .. } in &self.visits {
            if !seen.insert(*region) {
                let problem = format!("region `{name}` comes twice in a step");
                let fix = "give each visit a region of its own, for buffers and graphs belong to the region";
                return Err(Error::usage(problem, fix));
            }
            let (microbatch, of) = (instance.map(|instance| instance.microbatch), self.microbatches);
            if let Some(microbatch) = microbatch.filter(|microbatch| *microbatch >= of) {
                let problem =
                    format!("region `{name}` is of microbatch {microbatch}, counted from 0, in a step of {of}");
                return Err(Error::usage(problem, "pass the number of microbatches to the manager's step"));
            }
        }
        Ok(())
    }

    /// The index of the buffer that a tensor of a body stands for in the visit with that table. `None` for a buffer
    /// that no region takes.
    pub(crate) fn meant(&self, table: u32, tensor: &Tensor) -> Option<usize> {
        let local = tensor.buffer.placeholder_number()?;
        Some(self.tables[(table + local) as usize] as usize)
    }

    /// The tensor of a body as the visit with that table recorded the tensor.
    pub(super) fn recorded(&self, table: u32, tensor: Tensor) -> Tensor {
        match self.meant(table, &tensor) {
            Some(index) => {
                let Taken { address, buffer, .. } = self.buffers[index];
                Tensor { address: address + tensor.address, buffer, ..tensor }
            }
            None => tensor,
        }
    }

    /// The positions of a visit's graph: all but the copies of its inputs.
    pub(crate) fn in_graph(&self, visit: usize) -> Range<u32> {
        let visit = &self.visits[visit];
        visit.start + self.bodies[visit.held.body as usize].inputs..visit.end
    }

    /// The entry that an action names, with the table of the entry's visit. If it copies one of the region's inputs,
    /// also the input's number.
    pub(crate) fn entry(&self, visit: u32, item: u32) -> (&Entry, u32, Option<usize>) {
        let held = self.visits.get(visit as usize).map_or(self.outermost, |visit| visit.held);
        let body = &self.bodies[held.body as usize];
        let Item::Entry(entry) = &body.items[item as usize] else { unreachable!("an action names an entry") };
        (entry, held.table, (item < body.inputs).then_some(item as usize))
    }

    /// The communicators of rows that GPUs write into each other's memory, in the order of first transfers.
    pub(crate) fn communicators_of_rows(&self) -> Vec<&Rc<dyn Communicator>> {
        let mut found: Vec<&Rc<dyn Communicator>> = Vec::new();
        for item in self.bodies.iter().flat_map(|body| &body.items) {
            let Item::Entry(Entry { work: Work::Op(op), .. }) = item else { continue };
            let Op::Collective(transfer) = &**op else { continue };
            let is_new = !found.iter().any(|known| Rc::ptr_eq(known, &transfer.communicator));
            if is_new && matches!(transfer.kind, CollectiveKind::Rows(_)) {
                found.push(&transfer.communicator);
            }
        }
        found
    }

    /// The operations of a visit and of the visits inside.
    pub(crate) fn operations_in(&self, visit: usize) -> impl Iterator<Item = &Op> {
        let bodies = self.visits[visit..self.visits[visit].next()].iter().map(|visit| visit.held.body);
        bodies.flat_map(|body| &self.bodies[body as usize].items).filter_map(|item| match item {
            Item::Entry(Entry { work: Work::Op(op), .. }) => Some(&**op),
            _ => None,
        })
    }

    /// The shapes and types of the inputs that a visit copies.
    pub(crate) fn inputs(&self, visit: usize) -> impl Iterator<Item = (Shape, DType)> {
        let body = &self.bodies[self.visits[visit].held.body as usize];
        body.items[..body.inputs as usize].iter().filter_map(|item| match item {
            Item::Entry(Entry { work: Work::Op(op), .. }) => match &**op {
                Op::Copy(copy) => Some((copy.output.shape, copy.output.dtype)),
                _ => None,
            },
            _ => None,
        })
    }

    /// The list's queues, by number.
    pub(crate) fn queues(&self) -> &[StreamId] {
        &self.queues
    }
}

/// A join: from the join's position on, queue `by` waits for all entries of queue `of` before position `until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    pub(crate) position: u32,
    pub(crate) by: StreamId,
    pub(crate) of: StreamId,
    pub(crate) until: u32,
}
