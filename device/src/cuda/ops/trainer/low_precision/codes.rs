//! Weights that lie as codes.

use crate::Result;
use crate::cuda::kernels::{Arg, KernelFile, kernel_file};
use crate::cuda::ops::shape::over_packs;
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{CodeForm, CodedValues, CodesOfValues};

/// Values that a thread computes at a time; `VALUES` in `device/kernels/low_precision/codes.cu`.
const VALUES: usize = 8;

/// The name of a form in those of kernels.
fn named(form: CodeForm) -> &'static str {
    match form {
        CodeForm::Nf4 => "nf4",
        CodeForm::Int8 => "int8",
    }
}

impl KernelOperation for CodedValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("low_precision/codes.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packs = self.output.elements() / VALUES;
        let arguments = [self.codes.into(), self.scales.into(), self.output.into(), Arg::U64(packs as u64)];
        let kernel = format!("{}_values_{}", named(self.form), self.output.dtype);
        queue.launch(&kernel, over_packs(packs, queue), &arguments)
    }
}

impl KernelOperation for CodesOfValues {
    const FILES: &'static [KernelFile] = &[kernel_file!("low_precision/codes.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let packs = self.input.elements() / VALUES;
        let arguments = [self.input.into(), self.codes.into(), self.scales.into(), Arg::U64(packs as u64)];
        let kernel = format!("{}_codes_{}", named(self.form), self.input.dtype);
        queue.launch(&kernel, over_packs(packs, queue), &arguments)
    }
}
