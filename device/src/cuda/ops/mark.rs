//! Marks of progress.

use super::Queue;
use crate::cuda::{Arg, Grid};
use crate::ops::Mark;
use crate::progress::WORDS;
use crate::{Error, Result};

/// See [`Mark`].
pub(super) fn mark(op: &Mark, queue: &Queue<'_>) -> Result<()> {
    let Some(marks) = &queue.cuda.marks else {
        return Err(Error::operation("mark", "nobody watches this device. Fix: Device::watch"));
    };
    let (words, counts) = marks.addresses();
    let words = words + (op.lane * WORDS * size_of::<u64>()) as u64;
    let own = counts + ((1 + op.lane) * size_of::<u64>()) as u64;
    let arguments = [Arg::Pointer(words), Arg::Pointer(counts), Arg::Pointer(own), Arg::U32(op.value)];
    queue.launch("mark", Grid::line(1, 1), &arguments)
}
