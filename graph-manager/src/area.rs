//! The areas of memory that a plan fills.

use device::{BufferId, StreamId};

/// Names an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AreaKind {
    /// Buffers that do not outlive their region, used on one stream.
    Scratch(StreamId),
    /// What a microbatch saves in a chunk, by slot.
    Slot {
        /// The chunk.
        chunk: usize,
        /// The slot.
        slot: usize,
    },
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
