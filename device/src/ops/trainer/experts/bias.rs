//! Biases of experts: a row of numbers for each of them.

mod host;

use crate::cuda::{
    Grid, KernelFile, KernelOperation, LoadWidth, Queue, THREADS, kernel_file, kernel_struct, over_rows,
};
use crate::ops::{HasTensors, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_values, tensors};
use crate::{DType, Result, Tensor};

/// The weights of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowWeights {
    /// `(tokens, k)`, f32: the weight of each pair.
    pub weights: Tensor,
    /// `(rows)`, i32: see [`ExpertRows::pairs`](super::ExpertRows::pairs).
    pub pairs: Tensor,
}

impl HasTensors for RowWeights {
    tensors! { weights, pairs }
}

/// `rows[row] += bias[expert of row]`, times the row's weight if rows have weights. Rows of dropped pairs are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct AddExpertBias {
    /// `(rows, width)`, updated.
    pub rows: Tensor,
    /// `(experts * width)`, of the type of `rows`.
    pub bias: Tensor,
    /// `(experts + 1)`, i32: see [`ExpertRows::offsets`](super::ExpertRows::offsets).
    pub offsets: Tensor,
    /// The weights of rows.
    pub weights: Option<RowWeights>,
}

/// Gradient of the bias of [`AddExpertBias`]: `grad[expert] (+)= sum of rows`, each times its weight if rows have weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertBiasGradient {
    /// `(rows, width)`: the gradient of the rows.
    pub rows: Tensor,
    /// `(experts + 1)`, i32.
    pub offsets: Tensor,
    /// The weights of rows.
    pub weights: Option<RowWeights>,
    /// `(experts * width)`, f32.
    pub grad: Tensor,
    /// Add to `grad` instead of overwriting it.
    pub accumulate: bool,
}

/// Gradient of the weights of [`AddExpertBias`]: `grad_weights[pairs[row]] += rows[row] . bias[expert of row]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertBiasDots {
    /// `(rows, width)`: the gradient of the rows.
    pub rows: Tensor,
    /// `(experts * width)`, of the type of `rows`.
    pub bias: Tensor,
    /// `(experts + 1)`, i32.
    pub offsets: Tensor,
    /// `(rows)`, i32.
    pub pairs: Tensor,
    /// `(tokens, k)`, f32, updated.
    pub grad_weights: Tensor,
}

fn check(op: &'static str, rows: &Tensor, bias: &Tensor, offsets: &Tensor) -> Result<()> {
    ensure_float(op, &[("rows", *rows)])?;
    ensure_dtype(op, "offsets", offsets, DType::I32)?;
    ensure(op, offsets.elements() >= 2, || "there is no expert".into())?;
    ensure_elements(op, "the bias", bias, (offsets.elements() - 1) * rows.shape.last())
}

fn check_weights(op: &'static str, rows: &Tensor, weights: &Tensor, pairs: &Tensor) -> Result<()> {
    ensure_values(op, "weights", weights, DType::F32, rows.shape.rows())?;
    ensure_values(op, "pairs", pairs, DType::I32, rows.shape.rows())
}

impl Operation for AddExpertBias {
    const NAME: &'static str = "add_expert_bias";

    fn check(&self) -> Result<()> {
        check(Self::NAME, &self.rows, &self.bias, &self.offsets)?;
        ensure_dtype(Self::NAME, "bias", &self.bias, self.rows.dtype)?;
        self.weights.map_or(Ok(()), |of| check_weights(Self::NAME, &self.rows, &of.weights, &of.pairs))
    }

    tensors! { update rows; read bias, offsets, weights }
}

impl Operation for ExpertBiasGradient {
    const NAME: &'static str = "expert_bias_gradient";

    fn check(&self) -> Result<()> {
        check(Self::NAME, &self.rows, &self.grad, &self.offsets)?;
        ensure_dtype(Self::NAME, "grad", &self.grad, DType::F32)?;
        self.weights.map_or(Ok(()), |of| check_weights(Self::NAME, &self.rows, &of.weights, &of.pairs))
    }

    tensors! { read rows, offsets, weights; add[accumulate] grad }
}

impl Operation for ExpertBiasDots {
    const NAME: &'static str = "expert_bias_dots";

    fn check(&self) -> Result<()> {
        check(Self::NAME, &self.rows, &self.bias, &self.offsets)?;
        ensure_dtype(Self::NAME, "bias", &self.bias, self.rows.dtype)?;
        check_weights(Self::NAME, &self.rows, &self.grad_weights, &self.pairs)
    }

    tensors! { read rows, bias, offsets, pairs; update grad_weights }
}

const FILES: &[KernelFile] = &[kernel_file!(Experts, "experts/expert_bias.cu")];

kernel_struct! {
    /// `ExpertBias` of `kernels/experts/expert_bias.cu`.
    ExpertBiasArgs {
        u64: rows, bias, offsets, weights, pairs, output;
        u32: all, width, experts, accumulate;
    }
}

impl ExpertBiasArgs {
    fn new(rows: Tensor, bias: u64, offsets: Tensor, weights: Option<RowWeights>, output: u64) -> ExpertBiasArgs {
        ExpertBiasArgs {
            rows: rows.address,
            bias,
            offsets: offsets.address,
            weights: weights.map_or(0, |of| of.weights.address),
            pairs: weights.map_or(0, |of| of.pairs.address),
            output,
            all: rows.shape.rows() as u32,
            width: rows.shape.last() as u32,
            experts: (offsets.elements() - 1) as u32,
            accumulate: 0,
        }
    }
}

impl KernelOperation for AddExpertBias {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let AddExpertBias { rows, bias, offsets, weights } = *self;
        let load = LoadWidth::of(rows.shape.last(), [rows, bias]);
        let grid = over_rows(rows.shape.rows(), rows.shape.last() / load.values(rows.dtype), queue);
        let block = ExpertBiasArgs::new(rows, bias.address, offsets, weights, 0);
        queue.launch_block(&load.kernel("add_expert_bias", rows.dtype), grid, &block)
    }
}

impl KernelOperation for ExpertBiasGradient {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ExpertBiasGradient { rows, offsets, weights, grad, accumulate } = *self;
        let block = ExpertBiasArgs {
            accumulate: accumulate.into(),
            ..ExpertBiasArgs::new(rows, 0, offsets, weights, grad.address)
        };
        let grid = Grid::plane(block.experts as usize, rows.shape.last().div_ceil(32), THREADS);
        queue.launch_block(&format!("expert_bias_gradient_{}", rows.dtype), grid, &block)
    }
}

impl KernelOperation for ExpertBiasDots {
    const FILES: &'static [KernelFile] = FILES;

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let ExpertBiasDots { rows, bias, offsets, pairs, grad_weights } = *self;
        let load = LoadWidth::of(rows.shape.last(), [rows, bias]);
        let block = ExpertBiasArgs {
            pairs: pairs.address,
            ..ExpertBiasArgs::new(rows, bias.address, offsets, None, grad_weights.address)
        };
        let blocks = rows.shape.rows().div_ceil(THREADS / 32).min(queue.multiprocessors() * 8);
        queue.launch_block(&load.kernel("expert_bias_dots", rows.dtype), Grid::line(blocks, THREADS), &block)
    }
}
