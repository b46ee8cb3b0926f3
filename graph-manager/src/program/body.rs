//! The common part of visits that do the same: their submissions, without the buffers. Each visit has buffers of its
//! own.

use std::ops::Range;
use std::rc::Rc;

use crate::error::Result;
use device::{Accesses, Home, Op, Stream, StreamId, Tensor};

/// The submissions of a region, without the submissions of the regions inside.
pub(super) struct Body {
    pub(super) items: Vec<Item>,
    /// How many of the first items copy the region's inputs. They come before its graph.
    pub(super) inputs: u32,
    /// The reads and writes of the entries.
    pub(super) uses: Vec<Use>,
    /// The buffers that the region takes, in that order.
    pub(super) own: Vec<Own>,
    /// The start of the first visit's table.
    pub(super) table: u32,
    /// The length of each visit's table: the number of buffers that the body mentions.
    pub(super) mentions: u32,
}

/// A part of a body.
pub(super) enum Item {
    Entry(Entry),
    /// A join. The program has its position.
    Join {
        by: StreamId,
        of: StreamId,
    },
    /// An inner region.
    Inner,
}

/// An operation or a host call, on a queue.
pub(crate) struct Entry {
    pub(crate) queue: StreamId,
    /// Whether the rule of place orders the entry: it starts no earlier than the last entry before it on its base queue
    /// (see `order::base`). If not, joins order it. True if it has no base queue.
    pub(super) placed: bool,
    pub(crate) work: Work,
    /// Whether steps with graphs leave the entry out: they use the result of earlier steps.
    pub(crate) early: bool,
    /// The name of the entry's place in timelines, if that is not the region's name.
    pub(crate) label: Option<Rc<str>>,
    /// The range of the body's uses that belong to the entry.
    pub(super) uses: Range<u32>,
}

/// The work of an entry.
pub(crate) enum Work {
    /// An operation; a tensor in a buffer that a region takes has a placeholder for the buffer, with the buffer's
    /// number in the visit's table. Its address is counted from the buffer's beginning.
    Op(Box<Op>),
    /// A host call, which a graph cannot contain.
    Host(Rc<HostCall>),
}

/// Bytes that an entry reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// The buffer's number in the visit's table.
    pub(super) local: u32,
    pub(super) writes: bool,
    /// Counted from the buffer's beginning. Of a buffer that no region takes: addresses.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A buffer that a region takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// The buffer's number in the visit's table.
    pub(super) local: u32,
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    pub(super) home: Home,
}

/// Gives a tensor of the recording the tensor's address in the step.
pub(crate) type Addresses<'p> = &'p dyn Fn(Tensor) -> Tensor;

/// The code that is called, with the stream of the call's region.
pub(crate) type Call = Box<dyn Fn(&Stream, Addresses<'_>) -> Result<()>>;

/// Code that a step calls on the host each time, in the call's place in the list.
pub(crate) struct HostCall {
    pub(crate) name: &'static str,
    /// Tensors of the recording.
    pub(crate) accesses: Accesses,
    pub(crate) call: Call,
}
