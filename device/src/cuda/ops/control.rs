//! Small blocks that are passed by value.

use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::{Arg, Grid};
use crate::ops::{Control, WriteControl, WriteSampleRecord};

/// `WriteControl` of `kernels/control.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct WriteControlArgs {
    control: u64,
    value: Control,
}

/// See [`WriteControl`]. A kernel does it, and not the stream itself (`cuStreamBatchMemOp`): after a copy to the host the
/// driver has the stream write where such copies wait for each other, behind a checkpoint's:
/// `bench/results/2026-11-27-saves-and-starts-on-a-gpu.md`.
pub(super) fn write_control(op: &WriteControl, queue: &Queue<'_>) -> Result<()> {
    let block = WriteControlArgs { control: op.control.address, value: op.value };
    queue.launch_block("write_control", Grid::line(1, 1), &block)
}

/// See [`WriteSampleRecord`].
pub(super) fn write_sample_record(op: &WriteSampleRecord, queue: &Queue<'_>) -> Result<()> {
    queue.launch("write_sample_record", Grid::line(1, 1), &[op.control.into(), Arg::U64(op.offset), op.record.into()])
}
