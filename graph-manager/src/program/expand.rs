//! The list from beginning to end, with all bodies in place.

use super::body::{Body, Entry, Item, Use};
use super::data::{Held, Join, NONE, OUTSIDE, Program};

/// An entry with the buffers of the entry's visit.
pub(super) struct Expanded<'p> {
    /// Index of the visit; `NONE` outside of all.
    pub(super) visit: u32,
    pub(super) entry: &'p Entry,
    pub(super) table: u32,
    body: &'p Body,
    tables: &'p [u32],
}

/// An entry or a join of the list.
pub(super) enum EntryOrJoin<'p> {
    Entry(Expanded<'p>),
    Join(&'p Join),
}

impl<'p> Expanded<'p> {
    /// The entry's reads and writes, each with the index of the buffer. The index is marked if no region takes the
    /// buffer.
    pub(super) fn uses(&self) -> impl Iterator<Item = (u32, &'p Use)> {
        let (table, tables) = (self.table, self.tables);
        let uses = &self.body.uses[self.entry.uses.start as usize..self.entry.uses.end as usize];
        uses.iter().map(move |each| (tables[(table + each.local) as usize], each))
    }
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// Calls `each` with every position of the list and the entry or join there, in order.
    pub(super) fn walk<'p>(&'p self, mut each: impl FnMut(u32, EntryOrJoin<'p>)) {
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
                    each(position, EntryOrJoin::Entry(Expanded { visit, entry, body, table, tables: &self.tables }));
                }
                Item::Join { .. } => {
                    let Some(join) = joins.next() else { unreachable!("each join has its position") };
                    each(position, EntryOrJoin::Join(join));
                }
            }
            position += 1;
        }
    }

    /// Whether an index of a table is that of a buffer that a region takes.
    pub(super) fn is_taken(index: u32) -> bool {
        index & OUTSIDE == 0
    }
}
