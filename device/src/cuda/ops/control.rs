//! Small blocks that are passed by value.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{WriteControl, WriteSampleRecord};

/// See [`WriteControl`]. The stream writes the value itself: that costs the host less time than the launch of a kernel.
pub(super) fn write_control(op: &WriteControl, queue: &Queue<'_>) -> Result<()> {
    queue.stream.write_words(op.control.address, bytemuck::cast_slice(&[op.value]))
}

/// See [`WriteSampleRecord`].
pub(super) fn write_sample_record(op: &WriteSampleRecord, queue: &Queue<'_>) -> Result<()> {
    queue.launch("write_sample_record", Grid::line(1, 1), &[op.control.into(), Arg::U64(op.offset), op.record.into()])
}
