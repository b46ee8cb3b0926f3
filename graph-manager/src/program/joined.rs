//! A queue's wait for another.

use device::StreamId;

/// From its position on, queue `by` waits for all entries of queue `of` before position `until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    pub(crate) position: u32,
    pub(crate) by: StreamId,
    pub(crate) of: StreamId,
    pub(crate) until: u32,
}
