//! Marks of progress.

use crate::cuda::{Arg, CudaDevice, CudaOperation, Grid, KernelFile, Queue, kernel_file};
use crate::ops::ProgressMark;
use crate::progress::WORDS;
use crate::{Error, Result};

impl CudaOperation for ProgressMark {
    fn files() -> &'static [KernelFile] {
        &[kernel_file!("mark.cu")]
    }

    fn launch(&self, cuda: &CudaDevice, queue: &Queue<'_>) -> Result<()> {
        let Some(marks) = &cuda.marks else {
            return Err(Error::operation("mark", "nobody watches this device. Fix: Device::watch"));
        };
        let (words, counts) = marks.addresses();
        let words = words + (self.track * WORDS * size_of::<u64>()) as u64;
        let own = counts + ((1 + self.track) * size_of::<u64>()) as u64;
        let arguments = [Arg::Pointer(words), Arg::Pointer(counts), Arg::Pointer(own), Arg::U32(self.value)];
        queue.launch("mark", Grid::line(1, 1), &arguments)
    }
}
