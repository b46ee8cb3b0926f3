//! Choices between two tensors.

use super::shape::{LoadWidth, over_packs};
use crate::Result;
use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Condition, Select};

impl KernelOperation for Select {
    const FILES: &'static [KernelFile] = &[kernel_file!("select.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = match self.condition {
            // A pack of a mask is as many bytes as a pack of values has values.
            Condition::Mask(mask) if !mask.address.is_multiple_of(16) => LoadWidth::Scalar,
            _ => LoadWidth::of(count, [self.a, self.b, self.output]),
        };
        let (flag, mask) = match self.condition {
            Condition::Flag(flag) => (Some(flag), None),
            Condition::Mask(mask) => (None, Some(mask)),
        };
        let suffix = if load == LoadWidth::Scalar { "_scalar" } else { "" };
        queue.launch(
            &format!("select_{}{suffix}", 8 * dtype.size()),
            over_packs(count / load.values(dtype), queue),
            args! { flag, mask, self.a, self.b, self.output; U64: count },
        )
    }
}
