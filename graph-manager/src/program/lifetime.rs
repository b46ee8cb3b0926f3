//! The time in which a buffer is in use.

use device::StreamId;

/// Stands for several streams.
pub(super) const SEVERAL: u32 = u32::MAX;

/// The time in which a buffer is in use, in positions of the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The buffer's first and last use in the order of the buffer's stream. Only work of the same stream may go by
    /// these.
    pub(super) in_stream: (u32, u32),
    /// The stream of all uses of the buffer; `SEVERAL` if several streams use the buffer.
    pub(super) stream: u32,
}

impl Lifetime {
    /// In use at a position.
    pub(super) fn at(position: u32, stream: StreamId) -> Lifetime {
        Lifetime { first: position, last: position, in_stream: (position, position), stream: stream.0 }
    }

    /// The stream of all uses of the buffer; `None` if several streams use the buffer.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        (self.stream != SEVERAL).then_some(StreamId(self.stream))
    }

    /// The lifetime for other buffers of the same stream; `None` if several streams use the buffer.
    pub(crate) fn in_its_stream(self) -> Option<Lifetime> {
        self.stream().map(|_| Lifetime { first: self.in_stream.0, last: self.in_stream.1, ..self })
    }
}
