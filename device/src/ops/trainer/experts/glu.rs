//! Gated linear units of rows, times the router's weights.

mod host;

use crate::cuda::{Grid, KernelFile, KernelOperation, LoadWidth, Queue, fill, kernel_file, kernel_struct, over_rows};
use crate::ops::{
    Gate, Operation, ensure, ensure_elements, ensure_float, ensure_values, glu_backward_name, glu_name, tensors,
};
use crate::{DType, Result, Tensor};

/// `output = f(gate) * up * weights[pairs[row]]`, with each row of `input` holding `[gate | up]`. The weight is part of
/// the down projection's input, so that no expert's output need be kept for the weight's gradient. Rows of dropped pairs are
/// set to 0: a scale may be that of all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGlu {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`.
    pub input: Tensor,
    /// `(tokens, k)`, f32: the weight of each pair.
    pub weights: Tensor,
    /// `(rows)`, i32: see [`ExpertRows::pairs`](super::ExpertRows::pairs).
    pub pairs: Tensor,
    /// `(rows, f)`.
    pub output: Tensor,
}

fn check_rows(op: &'static str, input: &Tensor, output: &Tensor, weights: &Tensor, pairs: &Tensor) -> Result<()> {
    ensure_float(op, &[("input", *input), ("output", *output)])?;
    let rows = input.shape.rows();
    ensure(op, input.shape.last() == 2 * output.shape.last() && output.shape.rows() == rows, || {
        format!("`[gate | up]` is {:?}, needs twice the last axis of {:?}", input.shape, output.shape)
    })?;
    ensure_values(op, "weights", weights, DType::F32, rows)?;
    ensure_values(op, "pairs", pairs, DType::I32, rows)
}

impl Operation for ExpertGlu {
    const NAME: &'static str = "expert_glu";

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.input, &self.output, &self.weights, &self.pairs)
    }

    tensors! { read input, weights, pairs; write output }
}

/// Gradient of [`ExpertGlu`] with respect to `[gate | up]` and the weights. Dropped pairs have the gradient 0.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertGluBackward {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`, the forward's input.
    pub input: Tensor,
    /// `(tokens, k)`, f32.
    pub weights: Tensor,
    /// `(rows)`, i32.
    pub pairs: Tensor,
    /// `(rows, f)`.
    pub grad_output: Tensor,
    /// `(rows, 2 f)`, written.
    pub grad_input: Tensor,
    /// `(rows, f)`, written: the forward's output, which nothing keeps.
    pub output: Tensor,
    /// `(tokens, k)`, f32, written.
    pub grad_weights: Tensor,
}

impl Operation for ExpertGluBackward {
    const NAME: &'static str = "expert_glu_backward";

    fn check(&self) -> Result<()> {
        check_rows(Self::NAME, &self.input, &self.output, &self.weights, &self.pairs)?;
        check_rows(Self::NAME, &self.grad_input, &self.grad_output, &self.grad_weights, &self.pairs)?;
        ensure_float(Self::NAME, &[("input", self.input), ("grad_output", self.grad_output)])?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, self.output.elements())
    }

    tensors! { read input, weights, pairs, grad_output; write grad_input, output, grad_weights }
}

kernel_struct! {
    /// `ExpertGlu` of `kernels/experts/expert_glu.cu`.
    ExpertGluArgs {
        u64: input, weights, pairs, output;
        u32: rows, width;
    }
}

kernel_struct! {
    /// `ExpertGluBackward` of `kernels/experts/expert_glu.cu`.
    ExpertGluBackwardArgs {
        u64: input, weights, pairs, grad_output, grad_input, output, grad_weights;
        u32: rows, width;
    }
}

impl KernelOperation for ExpertGlu {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_glu.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.output]);
        let block = fill! { ExpertGluArgs: self.{input, weights, pairs, output}; rows, width };
        let name = format!("expert_{}", glu_name(self.gate));
        queue.launch_block(&load.kernel(&name, dtype), over_rows(rows, width / load.values(dtype), queue), &block)
    }
}

/// Packs of a row that a warp takes at most; a longer row goes to a block.
const WARP_PACKS: usize = 64;

/// Threads of a block with one row per warp.
const WARP_THREADS: usize = 128;

impl KernelOperation for ExpertGluBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!(Experts, "experts/expert_glu.cu")];

    /// A pass over a row also sums up the gradient of the row's weight.
    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) = (self.output.shape.rows(), self.output.shape.last(), self.output.dtype);
        let load = LoadWidth::of(width, [self.input, self.grad_output, self.grad_input, self.output]);
        let packs = width / load.values(dtype);
        let (form, blocks, threads) = match packs <= WARP_PACKS {
            true => ("warp", rows.div_ceil(WARP_THREADS / 32), WARP_THREADS),
            false => ("block", rows, packs.next_multiple_of(32).min(256)),
        };
        let block = fill! {
            ExpertGluBackwardArgs: self.{input, weights, pairs, grad_output, grad_input, output, grad_weights}; rows,
            width
        };
        let name = format!("expert_{}_{form}", glu_backward_name(self.gate));
        let grid = Grid::line(blocks.min(queue.multiprocessors() * 4096 / threads), threads);
        queue.launch_block(&load.kernel(&name, dtype), grid, &block)
    }
}
