//! What visits of regions have in common: what they submit, on buffers that each visit has its own of.

use std::ops::Range;
use std::rc::Rc;

use device::{Op, StreamId};

use super::host_call::HostCall;

/// What is submitted in a region, apart from what the regions inside it submit.
pub(super) struct Body {
    pub(super) items: Vec<Item>,
    /// How many of the first items copy the region's inputs. They come before its graph.
    pub(super) inputs: u32,
    /// What entries read and write.
    pub(super) uses: Vec<Use>,
    /// The buffers that the region takes, in that order.
    pub(super) own: Vec<Own>,
    /// The table of the first visit, and its length, which all visits with this body have.
    pub(super) table: u32,
    pub(super) mentions: u32,
}

/// A piece of a body.
pub(super) enum Item {
    Entry(Entry),
    /// A join. The program has its position.
    Join {
        by: StreamId,
        of: StreamId,
    },
    /// A region inside this one.
    Inner,
}

/// An operation or a copy on a queue.
pub(crate) struct Entry {
    pub(crate) queue: StreamId,
    /// On another queue than the region's: it starts no earlier than the region's entry before it. Where it does, joins say
    /// when.
    pub(super) placed: bool,
    pub(crate) work: Work,
    /// Steps with graphs leave it out: they find what it left.
    pub(crate) early: bool,
    /// What timelines call its place, if that is not its region.
    pub(crate) label: Option<Rc<str>>,
    /// Which of the body's uses are its own.
    pub(super) uses: Range<u32>,
}

/// What an entry does.
pub(crate) enum Work {
    /// Its tensors in buffers that regions take name the buffer by its number in the visit's table, as a placeholder, and
    /// have addresses from the buffer's beginning.
    Op(Box<Op>),
    /// A graph cannot have it.
    Host(Rc<HostCall>),
}

/// Bytes that an entry reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// The buffer, by its number in the visit's table.
    pub(super) local: u32,
    pub(super) writes: bool,
    /// Counted from the buffer's beginning. Of a buffer that no region takes: addresses.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A buffer that a region takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// Its number in the visit's table.
    pub(super) local: u32,
    pub(super) name: &'static str,
    pub(super) bytes: usize,
}
