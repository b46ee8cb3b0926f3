//! Activation functions.

use crate::Result;
use crate::cuda::kernels::{KernelFile, args, kernel_file};
use crate::cuda::ops::shape::{LoadWidth, over_packs, over_rows};
use crate::cuda::{KernelOperation, Queue};
use crate::ops::{Activation, ActivationBackward, ActivationKind, Gate, Glu, GluBackward};

impl KernelOperation for Activation {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/activation.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let name = match self.kind {
            ActivationKind::Gelu => "gelu",
            ActivationKind::Relu => "relu",
        };
        let (count, dtype) = (self.output.elements(), self.output.dtype);
        let load = LoadWidth::of(count, [self.input, self.output]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(&load.kernel(name, dtype), grid, args! { self.input, self.output; U64: count })
    }
}

impl KernelOperation for ActivationBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/activation.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let name = match self.kind {
            ActivationKind::Gelu => "gelu_backward",
            ActivationKind::Relu => "relu_backward",
        };
        let (count, dtype) = (self.grad_input.elements(), self.grad_input.dtype);
        let load = LoadWidth::of(count, [self.input, self.grad_output, self.grad_input]);
        let grid = over_packs(count / load.values(dtype), queue);
        queue.launch(
            &load.kernel(name, dtype),
            grid,
            args! { self.input, self.grad_output, self.grad_input; U64: count },
        )
    }
}

/// The name of a gated linear unit in the names of kernels.
pub(crate) fn glu_name(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "swiglu",
        Gate::Gelu => "geglu",
        Gate::ClampedSilu => "clamped_swiglu",
    }
}

/// The name of its gradient in the names of kernels.
pub(crate) fn glu_backward_name(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "swiglu_backward",
        Gate::Gelu => "geglu_backward",
        Gate::ClampedSilu => "clamped_swiglu_backward",
    }
}

impl KernelOperation for Glu {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/activation.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.output]);
        let grid = over_rows(rows, width / load.values(dtype), queue);
        queue.launch(
            &load.kernel(glu_name(self.gate), dtype),
            grid,
            args! { self.input, self.output; U32: rows, width },
        )
    }
}

impl KernelOperation for GluBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/activation.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) =
            (self.grad_output.shape.rows(), self.grad_output.shape.last(), self.grad_output.dtype);
        let load = LoadWidth::of(width, [self.input, self.grad_output, self.grad_input].into_iter().chain(self.output));
        let grid = over_rows(rows, width / load.values(dtype), queue);
        queue.launch(
            &load.kernel(glu_backward_name(self.gate), dtype),
            grid,
            args! { self.input, self.grad_output, self.grad_input, self.output; U32: rows, width },
        )
    }
}
