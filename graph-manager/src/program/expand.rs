//! The list from its beginning to its end.

use device::{Accesses, Op, StreamId};

use super::body::{Body, Entry, Item, Use, Work};
use super::{Held, Join, NONE, OUTSIDE, Program};

/// An entry with the buffers that its visit means.
pub(super) struct Expanded<'p> {
    /// Index of the visit; `NONE` outside of all.
    pub(super) visit: u32,
    pub(super) entry: &'p Entry,
    body: &'p Body,
    table: u32,
    tables: &'p [u32],
}

/// A piece of the list.
pub(super) enum Step<'p> {
    Entry(Expanded<'p>),
    Join(&'p Join),
}

/// An entry of the list, for those who read it.
pub(crate) struct Listed {
    pub(crate) position: u32,
    /// Index of its visit; `None` outside of all regions.
    pub(crate) visit: Option<usize>,
    pub(crate) queue: StreamId,
    /// `None` for a copy between host and device.
    pub(crate) op: Option<Op>,
    /// What it is called.
    pub(crate) name: &'static str,
    pub(crate) accesses: Accesses,
}

impl<'p> Expanded<'p> {
    /// What it reads and writes: the index of each buffer, marked where no region takes it.
    pub(super) fn uses(&self) -> impl Iterator<Item = (u32, &'p Use)> {
        let (table, tables) = (self.table, self.tables);
        let uses = &self.body.uses[self.entry.uses.start as usize..self.entry.uses.end as usize];
        uses.iter().map(move |each| (tables[(table + each.local) as usize], each))
    }
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Goes through the list.
    pub(super) fn walk<'p>(&'p self, mut each: impl FnMut(u32, Step<'p>)) {
        let (mut position, mut visits, mut joins) = (0, 0..self.visits.len(), self.joins.iter());
        let begin = |visit: u32, Held { body, table }: Held| {
            let body = &self.bodies[body as usize];
            (visit, body, table, body.items.iter())
        };
        let mut open = vec![begin(NONE, self.outermost)];
        while let Some((visit, body, table, items)) = open.last_mut() {
            let Some(item) = items.next() else {
                open.pop();
                continue;
            };
            match item {
                Item::Inner => {
                    let Some(inner) = visits.next() else { unreachable!("each region inside has a visit") };
                    open.push(begin(inner as u32, self.visits[inner].held));
                    continue;
                }
                Item::Entry(entry) => {
                    let (visit, body, table) = (*visit, *body, *table);
                    each(position, Step::Entry(Expanded { visit, entry, body, table, tables: &self.tables }));
                }
                Item::Join { .. } => {
                    let Some(join) = joins.next() else { unreachable!("each join has its position") };
                    each(position, Step::Join(join));
                }
            }
            position += 1;
        }
    }

    /// The entries in order, with the tensors of the recording.
    pub(crate) fn list(&self, mut each: impl FnMut(Listed)) {
        self.walk(|position, step| {
            let Step::Entry(Expanded { visit, entry, body, table, .. }) = step else { return };
            let meant = |tensor| self.meant(body, table, tensor);
            let (op, name, accesses) = match &entry.work {
                Work::Op(op) => {
                    let op = op.clone().map(meant);
                    let (name, accesses) = (op.name(), op.accesses());
                    (Some(op), name, accesses)
                }
                Work::HostCopy(name, of) => {
                    let (reads, writes) = (of.reads.iter().map(|x| meant(*x)), of.writes.iter().map(|x| meant(*x)));
                    (None, *name, Accesses::new(reads, writes))
                }
            };
            let visit = (visit != NONE).then_some(visit as usize);
            each(Listed { position, visit, queue: entry.queue, op, name, accesses });
        });
    }

    /// Whether an index of a table is that of a buffer that a region takes.
    pub(super) fn is_taken(index: u32) -> bool {
        index & OUTSIDE == 0
    }
}
