//! A step as a list.
//!
//! The list has what one pass over the step's code submitted: operations and copies between host and device, each on a queue, and
//! **joins**, where a queue waits for all that another has been given so far. Entries and joins are counted together: a
//! **position** is a place in the list.
//!
//! The list is divided into the visits of regions, which nest. Visits that submit the same on other buffers share one
//! [`Body`]; each has a **table** of the buffers that it means. So a step of many microbatches takes little memory.

mod body;
mod expand;
mod joined;
mod lifetimes;
mod list;
mod order;
mod recorder;
mod results;
mod spaces;

use std::ops::Range;
use std::rc::Rc;

use device::{BufferId, StreamId, Tensor};

use body::Body;
pub(crate) use joined::Join;
pub(crate) use lifetimes::Lifetime;
pub use list::ListedEntry;
pub(crate) use order::Wait;
pub(crate) use recorder::Recorder;
pub(crate) use results::Write;

use crate::error::{Error, Result};
use crate::policy::Policy;

/// One kind of step with a number of microbatches, as one pass over its code in which nothing ran submitted it.
pub(crate) struct Program<R> {
    pub(crate) microbatches: usize,
    /// The regions, in the order in which they begin.
    pub(crate) visits: Vec<Visit<R>>,
    /// What is submitted outside of all regions, and where regions are.
    outermost: Held,
    bodies: Vec<Body>,
    /// The buffers that the visits mean, by number within each.
    tables: Vec<u32>,
    /// The buffers that regions take, in that order.
    pub(crate) buffers: Vec<Taken>,
    /// By the number of a buffer on its device, less that of the first: its index in `buffers`.
    by_number: Vec<u32>,
    first_number: usize,
    /// Other buffers that the step uses, such as weights.
    outside: Vec<BufferId>,
    joins: Vec<Join>,
    /// Queues that entries are on. The first is the compute stream.
    queues: Vec<StreamId>,
    /// Entries and joins.
    length: u32,
    /// What entries wait for besides the entry before them on their queue. No wait follows from others.
    pub(crate) waits: Vec<Wait>,
    /// By index in `buffers`.
    lifetimes: Vec<Lifetime>,
}

/// A region's turn in a step.
pub(crate) struct Visit<R> {
    pub(crate) region: R,
    /// The region in words.
    pub(crate) name: Rc<str>,
    /// Index of the visit that this one is directly inside of.
    outer: u32,
    /// Index of the first visit after this one that is not inside it.
    next: u32,
    /// Positions of what was submitted.
    start: u32,
    end: u32,
    /// The stream that the region runs on.
    pub(crate) stream: StreamId,
    /// Which of the buffers the region and those inside it take.
    taken: (u32, u32),
    held: Held,
}

/// A body, and where its table begins.
#[derive(Clone, Copy, Default)]
struct Held {
    body: u32,
    table: u32,
}

/// A buffer that a region takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    /// Where it begins among the recording's own addresses.
    pub(crate) address: u64,
    pub(crate) buffer: BufferId,
    /// Index of the visit that takes it.
    visit: u32,
}

/// Stands for no index.
const NONE: u32 = u32::MAX;

/// Marks an index in a table as one of `outside`.
const OUTSIDE: u32 = 1 << 31;

impl Taken {
    /// Index of the visit that takes it.
    pub(crate) fn visit(&self) -> usize {
        self.visit as usize
    }
}

impl<R> Visit<R> {
    /// Index of the visit that this one is directly inside of.
    pub(crate) fn outer(&self) -> Option<usize> {
        (self.outer != NONE).then_some(self.outer as usize)
    }

    /// Index of the first visit after this one that is not inside it.
    pub(crate) fn next(&self) -> usize {
        self.next as usize
    }

    /// Positions of what is submitted in it.
    pub(crate) fn positions(&self) -> Range<u32> {
        self.start..self.end
    }

    /// Whether nothing is submitted in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Whether a region has others inside it.
    pub(crate) fn is_composite(&self, visit: usize) -> bool {
        self.visits[visit].next() > visit + 1
    }

    /// Operations and copies between those positions.
    pub(crate) fn entries(&self, positions: Range<u32>) -> usize {
        let before = |position: u32| self.joins.partition_point(|join| join.position < position);
        positions.len() - (before(positions.end) - before(positions.start))
    }

    /// Operations and copies of the whole step.
    pub(crate) fn operations(&self) -> usize {
        self.entries(0..self.length)
    }

    /// Bytes of the buffers that a region takes, those of the regions inside it included.
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

    /// The buffers in the order in which regions take them, each with its number among those of its visit.
    pub(crate) fn taken_in_order(&self) -> impl Iterator<Item = (&Taken, usize)> {
        let mut counts = vec![0; self.visits.len()];
        self.buffers.iter().map(move |buffer| {
            let count: &mut usize = &mut counts[buffer.visit()];
            *count += 1;
            (buffer, *count - 1)
        })
    }

    /// The number of a buffer among those of its visit.
    pub(crate) fn index_in_visit(&self, buffer: usize) -> usize {
        let mut owned = self.owned(self.buffers[buffer].visit());
        owned
            .position(|(own, _)| own == buffer)
            .unwrap_or_else(|| unreachable!("a visit has the buffers that it takes"))
    }

    /// When a buffer is in use.
    pub(crate) fn used(&self, buffer: usize) -> Lifetime {
        self.lifetimes[buffer]
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
    pub(crate) fn check(&self, policy: &impl Policy<Region = R>) -> Result<()> {
        let mut seen = std::collections::HashSet::with_capacity(self.visits.len());
        for Visit { region, name, .. } in &self.visits {
            if !seen.insert(*region) {
                let problem = format!("region `{name}` comes twice in a step");
                let fix = "give each visit a region of its own, for buffers and graphs belong to the region";
                return Err(Error::usage(problem, fix));
            }
            let (microbatch, of) = (policy.instance(*region).map(|instance| instance.microbatch), self.microbatches);
            if let Some(microbatch) = microbatch.filter(|microbatch| *microbatch >= of) {
                let problem =
                    format!("region `{name}` is of microbatch {microbatch}, counted from 0, in a step of {of}");
                return Err(Error::usage(problem, "pass the number of microbatches to the manager's step"));
            }
        }
        Ok(())
    }

    /// A tensor of the body's first visit, as it is in the visit with that table.
    fn meant(&self, body: &Body, table: u32, tensor: Tensor) -> Tensor {
        let Some(first) = self.taken(tensor.buffer) else { return tensor };
        let of_body = &self.tables[body.table as usize..(body.table + body.mentions) as usize];
        let Some(local) = of_body.iter().position(|&index| index == first as u32) else { return tensor };
        let (from, to) = (self.buffers[first], self.buffers[self.tables[table as usize + local] as usize]);
        Tensor { address: to.address + (tensor.address - from.address), buffer: to.buffer, ..tensor }
    }
}
