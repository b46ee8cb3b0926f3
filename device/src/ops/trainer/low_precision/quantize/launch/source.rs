//! The source of 8-bit copies, as kernels see it.

use crate::cuda::{fill, kernel_struct};
use crate::ops::{ActivationKind, Fp8Matrix, QuantizeSource, glu_backward_name, glu_name};
use crate::{DType, Tensor};

/// A tile of `kernels/low_precision/quantize.cu`.
pub(in crate::ops::trainer::low_precision) const TILE_ROWS: usize = 128;
pub(in crate::ops::trainer::low_precision) const TILE_COLUMNS: usize = 64;
/// Values that a thread loads at a time.
pub(in crate::ops::trainer::low_precision) const PACK: usize = 8;

kernel_struct! {
    /// `Quantize` of `kernels/headers/quantize.cuh`; 0 is the null pointer.
    QuantizeArgs {
        u64: input, grad, weight, bias, mean, rstd, rows_out, columns_out, rows_scale, columns_scale, amax, partial;
        u32: rows, width, rows_e5m2, columns_e5m2, same_bytes, wide_columns, kept, bf16_inputs, groups;
        f32: weight_offset;
    }
}

/// The source of the values, as the kernels see it.
pub(in crate::ops::trainer::low_precision) struct Source {
    /// In the kernels' names.
    name: &'static str,
    input: Tensor,
    grad: Option<Tensor>,
    /// A norm's.
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    mean: Option<Tensor>,
    rstd: Option<Tensor>,
    weight_offset: f32,
    /// Values loaded for each one that a thread walks along.
    pub(in crate::ops::trainer::low_precision) loads: usize,
    /// The columns that a thread walks along: all, or half of them if it computes a value of each half.
    pub(in crate::ops::trainer::low_precision) width: usize,
}

impl Source {
    pub(in crate::ops::trainer::low_precision) fn of(source: &QuantizeSource) -> Source {
        let (_, columns) = source.dimensions();
        let (mut weight, mut bias, mut mean, mut rstd, mut weight_offset) = (None, None, None, None, 0.0);
        let (name, input, grad, loads, width) = match *source {
            QuantizeSource::Stored(input) => ("stored", input, None, 1, columns),
            QuantizeSource::Rounded(input) => ("rounded", input, None, 1, columns),
            QuantizeSource::Norm {
                input,
                mean: means,
                rstd: rstds,
                weight: weights,
                weight_offset: offset,
                bias: biases,
            } => {
                (weight, bias, mean, rstd) = (Some(weights), biases, means, Some(rstds));
                weight_offset = offset;
                ("norm", input, None, 1, columns)
            }
            QuantizeSource::Activation { kind: ActivationKind::Gelu, input } => ("gelu", input, None, 1, columns),
            QuantizeSource::Activation { kind: ActivationKind::Relu, input } => ("relu", input, None, 1, columns),
            QuantizeSource::ActivationBackward { kind, input, grad_output } => {
                let name = match kind {
                    ActivationKind::Gelu => "gelu_backward",
                    ActivationKind::Relu => "relu_backward",
                };
                (name, input, Some(grad_output), 2, columns)
            }
            QuantizeSource::Glu { gate, input } => (glu_name(gate), input, None, 2, columns),
            QuantizeSource::GluBackward { gate, input, grad_output } => {
                (glu_backward_name(gate), input, Some(grad_output), 3, columns / 2)
            }
        };
        Source { name, input, grad, weight, bias, mean, rstd, weight_offset, loads, width }
    }

    /// Whether a thread can load 16 bytes at a time, and store 8 bytes of the copy in its own layout.
    pub(in crate::ops::trainer::low_precision) fn vector(&self, rows: Option<&Fp8Matrix>) -> bool {
        let aligned = |tensor: Tensor, to: u64| tensor.address.is_multiple_of(to);
        self.width.is_multiple_of(PACK)
            && [Some(self.input), self.grad, self.weight, self.bias].into_iter().flatten().all(|x| aligned(x, 16))
            && rows.is_none_or(|rows| aligned(rows.values, 8))
    }

    /// The kernel's name for this source.
    pub(in crate::ops::trainer::low_precision) fn kernel(&self, kernel: &str, vector: bool) -> String {
        let path = if vector { self.input.dtype.name() } else { "scalar" };
        format!("{kernel}_{}_{path}", self.name)
    }

    /// The kernels' argument with this source of so many rows, and no output.
    pub(in crate::ops::trainer::low_precision) fn block(&self, rows: usize) -> QuantizeArgs {
        fill! {
            QuantizeArgs: self.{input, grad, weight, bias, mean, rstd, weight_offset, width}; rows,
            bf16_inputs: self.input.dtype == DType::Bf16; ..bytemuck::Zeroable::zeroed()
        }
    }
}

pub(in crate::ops::trainer::low_precision) fn is_e5m2(matrix: Option<&Fp8Matrix>) -> u32 {
    matrix.is_some_and(|matrix| matrix.values.dtype == DType::F8E5M2).into()
}

/// Whether the rows of the transposed copy of a matrix of so many rows are stored 16 bytes at a time.
pub(in crate::ops::trainer::low_precision) fn wide_columns(rows: usize, copy: &Fp8Matrix) -> u32 {
    (rows.is_multiple_of(16) && copy.values.address.is_multiple_of(16)).into()
}
