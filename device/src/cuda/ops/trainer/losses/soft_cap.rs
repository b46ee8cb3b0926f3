//! Bound of logits.

use crate::Result;
use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_packs};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::SoftCap;

impl KernelOperation for SoftCap {
    const FILES: &'static [KernelFile] = &[kernel_file!("elementwise.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.values.elements(), self.values.dtype);
        let load = LoadWidth::of(count, [self.values]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&load.kernel("soft_cap", dtype), grid, args! { self.values; F32: self.cap; U64: count })
    }
}
