//! The list for readers outside.

use std::rc::Rc;

use device::{Accesses, Op, StreamId};

use super::body::Work;
use super::data::{NONE, Program};
use super::expand::{EntryOrJoin, Expanded};

/// An entry of a step's list: an operation or a call of the host.
///
/// An entry comes after the entry before it on its queue, and after those that it waits for. That is the order of the whole
/// list: no wait follows from others. Buffers of the plan have addresses of the recording's own.
#[derive(Clone, Debug)]
pub struct ListedEntry {
    /// The entry's number in the list, from 0.
    pub number: usize,
    /// The entry's position in the recorded step, in which waits of streams have positions too. The times of a
    /// [`BufferUse`](crate::BufferUse) are such positions.
    pub position: usize,
    /// The index of the entry's visit; `None` outside of all regions. Visits are counted in the order in which regions
    /// begin.
    pub visit: Option<usize>,
    /// The entry's region, or a special name for timelines; empty outside of all regions.
    pub region: Rc<str>,
    /// The visit whose graph contains the entry; `None` for an eager entry.
    pub graph: Option<usize>,
    /// The entry's queue.
    pub queue: StreamId,
    /// The name of the entry's operation or host call.
    pub name: &'static str,
    /// The operation. `None` for a call of the host.
    pub op: Option<Op>,
    /// The tensors that the entry reads and writes.
    pub accesses: Accesses,
    /// The numbers of the entries of other queues that the entry waits for.
    pub waits: Vec<usize>,
}

impl<R: Copy + Eq + std::hash::Hash + std::fmt::Display> Program<R> {
    /// The entries in order, with the tensors of the recording.
    pub(crate) fn list(&self, mut each: impl FnMut(ListedEntry)) {
        // By position: the number of the entry.
        let mut numbers: Vec<u32> = Vec::with_capacity(self.length as usize);
        let (mut number, mut waits, outside): (_, _, Rc<str>) = (0, self.waits.iter().peekable(), "".into());
        self.walk(|position, step| {
            numbers.push(number);
            let EntryOrJoin::Entry(Expanded { visit, entry, table, .. }) = step else { return };
            let (op, name, accesses) = match &entry.work {
                Work::Op(op) => {
                    let op = Op::clone(op).map(|tensor| self.recorded(table, tensor));
                    let (name, accesses) = (op.name(), op.accesses());
                    (Some(op), name, accesses)
                }
                Work::Host(call) => (None, call.name, call.accesses.clone()),
            };
            let mut on = Vec::new();
            while let Some(wait) = waits.next_if(|wait| wait.position == position) {
                on.push(numbers[wait.on as usize] as usize);
            }
            let region = if visit == NONE { &outside } else { &self.visits[visit as usize].name };
            let region = entry.label.as_ref().unwrap_or(region);
            each(ListedEntry {
                number: number as usize,
                position: position as usize,
                visit: (visit != NONE).then_some(visit as usize),
                region: region.clone(),
                graph: None,
                queue: entry.queue,
                name,
                op,
                accesses,
                waits: on,
            });
            number += 1;
        });
    }
}
