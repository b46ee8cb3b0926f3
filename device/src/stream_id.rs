//! The name of a stream.

/// Names a stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    pub(crate) const DEFAULT: StreamId = StreamId(0);

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
