//! Weights in 4 bits.

use crate::Result;
use crate::cuda::kernels::{Arg, KernelFile, kernel_file};
use crate::cuda::ops::shape::over_packs;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::Nf4Values;

/// Values that a thread computes at a time; `VALUES` in `device/kernels/nf4.cu`.
const VALUES: usize = 8;

impl KernelOperation for Nf4Values {
    const FILES: &'static [KernelFile] = &[kernel_file!("nf4.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packs = self.output.elements() / VALUES;
        let arguments = [self.codes.into(), self.scales.into(), self.output.into(), Arg::U64(packs as u64)];
        queue.launch(&format!("nf4_values_{}", self.output.dtype), over_packs(packs, queue), &arguments)
    }
}
