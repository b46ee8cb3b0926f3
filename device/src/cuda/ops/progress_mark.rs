//! Marks of progress.

use crate::cuda::ProgressMarks;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::ProgressMark;
use crate::progress::WORDS;
use crate::{Error, Result};

/// See [`ProgressMark`].
pub(super) fn progress_mark(op: &ProgressMark, marks: Option<&ProgressMarks>, queue: &Queue<'_>) -> Result<()> {
    let Some(marks) = marks else {
        return Err(Error::operation("mark", "nobody watches this device. Fix: Device::watch"));
    };
    let (words, counts) = marks.addresses();
    let words = words + (op.track * WORDS * size_of::<u64>()) as u64;
    let own = counts + ((1 + op.track) * size_of::<u64>()) as u64;
    let arguments = [Arg::Pointer(words), Arg::Pointer(counts), Arg::Pointer(own), Arg::U32(op.value)];
    queue.launch("mark", Grid::line(1, 1), &arguments)
}
