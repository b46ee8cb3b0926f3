//! Activation functions.

use super::shape::{LoadWidth, over_packs, over_rows};
use crate::Result;
use crate::cuda::Queue;
use crate::cuda::kernels::Arg;
use crate::ops::{Activation, ActivationBackward, ActivationKind, Gate, Glu, GluBackward};

/// See [`Activation`].
pub(super) fn activation(op: &Activation, queue: &Queue<'_>) -> Result<()> {
    let name = match op.kind {
        ActivationKind::Gelu => "gelu",
        ActivationKind::Relu => "relu",
    };
    let (count, dtype) = (op.output.elements(), op.output.dtype);
    let load = LoadWidth::of(count, [op.input, op.output]);
    let grid = over_packs(count / load.values(dtype), queue);
    queue.launch(&load.kernel(name, dtype), grid, &[op.input.into(), op.output.into(), Arg::U64(count as u64)])
}

/// See [`ActivationBackward`].
pub(super) fn activation_backward(op: &ActivationBackward, queue: &Queue<'_>) -> Result<()> {
    let name = match op.kind {
        ActivationKind::Gelu => "gelu_backward",
        ActivationKind::Relu => "relu_backward",
    };
    let (count, dtype) = (op.grad_input.elements(), op.grad_input.dtype);
    let load = LoadWidth::of(count, [op.input, op.grad_output, op.grad_input]);
    let grid = over_packs(count / load.values(dtype), queue);
    queue.launch(
        &load.kernel(name, dtype),
        grid,
        &[op.input.into(), op.grad_output.into(), op.grad_input.into(), Arg::U64(count as u64)],
    )
}

/// The name of a gated linear unit in the names of kernels.
pub(super) fn glu_name(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "swiglu",
        Gate::Gelu => "geglu",
    }
}

/// The name of its gradient in the names of kernels.
pub(super) fn glu_backward_name(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "swiglu_backward",
        Gate::Gelu => "geglu_backward",
    }
}

/// See [`Glu`].
pub(super) fn glu(op: &Glu, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.output.shape.rows(), op.output.shape.last(), op.output.dtype);
    let load = LoadWidth::of(width, [op.input, op.output]);
    let grid = over_rows(rows, width / load.values(dtype), queue);
    queue.launch(
        &load.kernel(glu_name(op.gate), dtype),
        grid,
        &[op.input.into(), op.output.into(), Arg::U32(rows as u32), Arg::U32(width as u32)],
    )
}

/// See [`GluBackward`].
pub(super) fn glu_backward(op: &GluBackward, queue: &Queue<'_>) -> Result<()> {
    let (rows, width, dtype) = (op.grad_output.shape.rows(), op.grad_output.shape.last(), op.grad_output.dtype);
    let load = LoadWidth::of(width, [op.input, op.grad_output, op.grad_input].into_iter().chain(op.output));
    let grid = over_rows(rows, width / load.values(dtype), queue);
    queue.launch(
        &load.kernel(glu_backward_name(op.gate), dtype),
        grid,
        &[
            op.input.into(),
            op.grad_output.into(),
            op.grad_input.into(),
            op.output.into(),
            Arg::U32(rows as u32),
            Arg::U32(width as u32),
        ],
    )
}
