//! The values that a parameter begins with.

use crate::cuda::kernels::{Arg, KernelFile, kernel_file};
use crate::cuda::ops::shape::over_packs;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Distribution, FirstValues};
use crate::{DType, Result};

impl KernelOperation for FirstValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("updates/first_values.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let count = self.output.elements();
        let (output, remainders, rounded) = match self.output.dtype {
            DType::F32 => (Some(self.output), None, self.rounded),
            DType::U16 => (None, Some(self.output), self.rounded),
            _ => (None, None, Some(self.output)),
        };
        let (distribution, scale) = match self.distribution {
            Distribution::Uniform(bound) => (0, bound),
            Distribution::Normal(std) => (1, std),
            Distribution::Constant(value) => (2, value),
        };
        let sizes =
            [count as u64, self.seed, self.stream, self.first, self.row as u64, self.pitch as u64].map(Arg::U64);
        let arguments =
            [&[output, remainders, rounded].map(Arg::from)[..], &sizes, &[Arg::U32(distribution), Arg::F32(scale)]]
                .concat();
        queue.launch("first_values", over_packs(count, queue), &arguments)
    }
}
