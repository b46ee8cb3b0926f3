//! Small blocks that are passed by value.

use crate::Result;
use crate::cuda::kernels::{Arg, Grid, KernelFile, kernel_file, kernel_struct};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Control, WriteControl, WriteSampleRecord};

kernel_struct! {
    /// `WriteControl` of `kernels/updates/control.cu`.
    WriteControlArgs {
        u64: control;
        Control: value;
    }
}

impl KernelOperation for WriteControl {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/control.cu")];

    /// A kernel does it, and not the stream itself (`cuStreamBatchMemOp`): after a copy to the host the
    /// driver has the stream write where such copies wait for each other, behind a checkpoint's:
    /// `bench/results/2026-11-27-saves-and-starts-on-a-gpu.md`.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let block = WriteControlArgs { control: self.control.address, value: self.value };
        queue.launch_block("write_control", Grid::line(1, 1), &block)
    }
}

impl KernelOperation for WriteSampleRecord {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/control.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        queue.launch(
            "write_sample_record",
            Grid::line(1, 1),
            &[self.control.into(), Arg::U64(self.offset), self.record.into()],
        )
    }
}
