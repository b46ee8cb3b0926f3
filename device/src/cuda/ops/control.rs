//! Small blocks by value.

use super::Queue;
use crate::Result;
use crate::cuda::{Arg, Grid};
use crate::ops::{Control, WriteControl, WriteSampleRecord};

/// `WriteControl` of `kernels/control.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Block {
    control: u64,
    value: Control,
}

/// See [`WriteControl`].
pub(super) fn write_control(op: &WriteControl, queue: &Queue<'_>) -> Result<()> {
    queue.launch_block("write_control", Grid::line(1, 1), &Block { control: op.control.address, value: op.value })
}

/// See [`WriteSampleRecord`].
pub(super) fn write_sample_record(op: &WriteSampleRecord, queue: &Queue<'_>) -> Result<()> {
    queue.launch("write_sample_record", Grid::line(1, 1), &[op.control.into(), Arg::U64(op.offset), op.record.into()])
}
