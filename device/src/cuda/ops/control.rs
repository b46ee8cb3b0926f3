//! Small blocks that are passed by value.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{WriteControl, WriteSampleRecord};

/// See [`WriteControl`]. A kernel does it, and not the stream itself (`cuStreamBatchMemOp`): after a copy to the host the
/// driver has the stream write where such copies wait for each other, behind a checkpoint's:
/// `bench/results/2026-11-27-saves-and-starts-on-a-gpu.md`.
pub(super) fn write_control(op: &WriteControl, queue: &Queue<'_>) -> Result<()> {
    let words: [u64; 4] = bytemuck::cast(op.value);
    let value = words.map(Arg::U64);
    queue.launch("write_control", Grid::line(1, 1), &[&value[..], &[op.control.into()]].concat())
}

/// See [`WriteSampleRecord`].
pub(super) fn write_sample_record(op: &WriteSampleRecord, queue: &Queue<'_>) -> Result<()> {
    queue.launch("write_sample_record", Grid::line(1, 1), &[op.control.into(), Arg::U64(op.offset), op.record.into()])
}
