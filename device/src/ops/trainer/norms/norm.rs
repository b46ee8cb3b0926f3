//! Normalisation over the hidden axis, with the residual add before it.

mod host;
mod launch;

use crate::ops::{
    Accesses, Operation, ensure, ensure_dtype, ensure_elements, ensure_float, ensure_shape, ensure_values, tensors,
};
use crate::{DType, Result, Tensor};
pub(crate) use launch::norm_parts;

/// The kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` (Ba et al., 2016); variance over `hidden`, not `hidden - 1`.
    Layer,
    /// `x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich, 2019).
    Rms,
    /// `x / sqrt(mean(x^2) + eps) * (1 + weight)`: RMSNorm with a weight that starts at 0 (Gemma Team, 2024).
    Rms1p,
}

impl NormKind {
    /// Added to the weight, in f32.
    pub fn weight_offset(self) -> f32 {
        match self {
            NormKind::Layer | NormKind::Rms => 0.0,
            NormKind::Rms1p => 1.0,
        }
    }
}

/// `sum = input + residual`, `output = norm(sum)`, one pass over each row.
///
/// The statistics are those of `sum` as stored, that is after rounding to its type. Without `residual` the sum is the
/// input itself and `sum` is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// The kind of normalisation.
    pub kind: NormKind,
    /// `(rows, hidden)`.
    pub input: Tensor,
    /// `(rows, hidden)`, added to `input`; goes with `sum`.
    pub residual: Option<Tensor>,
    /// `(rows, hidden)`, written: the norm's input, and the next residual.
    pub sum: Option<Tensor>,
    /// `(hidden)`.
    pub weight: Tensor,
    /// `(hidden)`; LayerNorm only.
    pub bias: Option<Tensor>,
    /// `(rows, hidden)`. Without it only `sum` and the statistics are computed: enough for a reader that computes the normed
    /// values itself, as [`QuantizeSource::Norm`](crate::ops::QuantizeSource::Norm).
    pub output: Option<Tensor>,
    /// `(rows)`, f32, written; LayerNorm only.
    pub mean: Option<Tensor>,
    /// `(rows)`, f32, written: `1 / sqrt(var + eps)`.
    pub rstd: Tensor,
    /// Added to the variance.
    pub eps: f32,
}

impl Operation for Norm {
    const NAME: &'static str = "norm";

    fn check(&self) -> Result<()> {
        let (rows, hidden) = (self.input.shape.rows(), self.input.shape.last());
        ensure_float(Self::NAME, &[("input", self.input), ("weight", self.weight)])?;
        ensure_elements(Self::NAME, "weight", &self.weight, hidden)?;
        ensure_elements(Self::NAME, "rstd", &self.rstd, rows)?;
        ensure_dtype(Self::NAME, "rstd", &self.rstd, DType::F32)?;
        check_mean(Self::NAME, self.mean, rows)?;
        ensure(Self::NAME, self.residual.is_some() == self.sum.is_some(), || {
            "`residual` and `sum` go together".into()
        })?;
        let layer = self.kind == NormKind::Layer;
        ensure(Self::NAME, self.mean.is_some() == layer && (layer || self.bias.is_none()), || {
            "`mean` and `bias` belong to LayerNorm, which needs `mean`".into()
        })?;
        for (name, tensor) in [("residual", self.residual), ("sum", self.sum), ("output", self.output)] {
            if let Some(tensor) = tensor {
                ensure_float(Self::NAME, &[("input", self.input), (name, tensor)])?;
                ensure_elements(Self::NAME, name, &tensor, rows * hidden)?;
            }
        }
        if let Some(bias) = self.bias {
            ensure_float(Self::NAME, &[("input", self.input), ("bias", bias)])?;
            ensure_elements(Self::NAME, "bias", &bias, hidden)?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        // The statistics alone need neither weight nor bias.
        let (weight, bias) = (self.output.map(|_| self.weight), self.output.and(self.bias));
        Accesses::new([self.input], [self.rstd])
            .reads(self.residual)
            .reads(weight)
            .reads(bias)
            .writes(self.sum)
            .writes(self.output)
            .writes(self.mean)
    }

    tensors! { input, residual, sum, weight, bias, output, mean, rstd }
}

/// A LayerNorm's means are f32, one a row.
pub(crate) fn check_mean(op: &'static str, mean: Option<Tensor>, rows: usize) -> Result<()> {
    let Some(mean) = mean else { return Ok(()) };
    ensure_values(op, "mean", &mean, DType::F32, rows)
}

/// The sums over rows that a [`NormBackward`] leaves parts of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSums {
    /// The gradients of the norm's parameters.
    Parameters,
    /// The gradients of the norm's parameters, and the sum of the residual gradient.
    ParametersAndResidual,
}

/// Gradient of [`Norm`]: `grad_input = d norm(input) + grad_residual`, and parts of the parameter gradients, in f32.
/// [`AddPartialColumns`](crate::ops::AddPartialColumns) adds up the parts, those of several norms at once.
///
/// `input` is the forward's `sum` if it had a residual, else its `input`. `grad_input` may be `grad_residual`. There
/// may be any number of parts, the same for all parameters. [`Device::norm_parts`](crate::Device::norm_parts) gives a
/// number that suits the device.
///
/// `grad_residual` is also the gradient of tensors added to `sum` later. If such a tensor is the output of a linear
/// layer, the sum of `grad_residual` over the rows is the gradient of the layer's bias.
#[derive(Clone, Debug, PartialEq)]
pub struct NormBackward {
    /// The kind of normalisation.
    pub kind: NormKind,
    /// `(rows, hidden)`, the normalised tensor.
    pub input: Tensor,
    /// `(hidden)`.
    pub weight: Tensor,
    /// `(rows)`, f32; LayerNorm only.
    pub mean: Option<Tensor>,
    /// `(rows)`, f32.
    pub rstd: Tensor,
    /// `(rows, hidden)`.
    pub grad_output: Tensor,
    /// `(rows, hidden)`: the gradient that reaches `sum` around the norm.
    pub grad_residual: Option<Tensor>,
    /// `(rows, hidden)`.
    pub grad_input: Tensor,
    /// `(parts, hidden)`, f32; `None` if the weight is frozen.
    pub weight_parts: Option<Tensor>,
    /// `(parts, hidden)`, f32; `None` if the forward had no bias, or the bias is frozen.
    pub bias_parts: Option<Tensor>,
    /// `(parts, hidden)`, f32: of the sum of `grad_residual` over the rows.
    pub residual_parts: Option<Tensor>,
}

impl NormBackward {
    fn all_parts(&self) -> impl Iterator<Item = Tensor> {
        [self.weight_parts, self.bias_parts, self.residual_parts].into_iter().flatten()
    }

    /// The number of parts of each sum; `None` without parts.
    pub(crate) fn parts(&self) -> Option<usize> {
        self.all_parts().next().map(|parts| parts.shape.rows())
    }
}

impl Operation for NormBackward {
    const NAME: &'static str = "norm_backward";

    fn check(&self) -> Result<()> {
        let (rows, hidden) = (self.input.shape.rows(), self.input.shape.last());
        ensure_float(
            Self::NAME,
            &[
                ("input", self.input),
                ("weight", self.weight),
                ("grad_output", self.grad_output),
                ("grad_input", self.grad_input),
            ],
        )?;
        ensure_elements(Self::NAME, "weight", &self.weight, hidden)?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, rows * hidden)?;
        ensure_elements(Self::NAME, "grad_input", &self.grad_input, rows * hidden)?;
        ensure_elements(Self::NAME, "rstd", &self.rstd, rows)?;
        ensure_dtype(Self::NAME, "rstd", &self.rstd, DType::F32)?;
        check_mean(Self::NAME, self.mean, rows)?;
        let layer = self.kind == NormKind::Layer;
        ensure(Self::NAME, self.mean.is_some() == layer && (layer || self.bias_parts.is_none()), || {
            "`mean` and `bias_parts` belong to LayerNorm, which needs `mean`".into()
        })?;
        if let Some(residual) = self.grad_residual {
            ensure_float(Self::NAME, &[("input", self.input), ("grad_residual", residual)])?;
            ensure_elements(Self::NAME, "grad_residual", &residual, rows * hidden)?;
        }
        ensure(Self::NAME, self.grad_residual.is_some() || self.residual_parts.is_none(), || {
            "`residual_parts` needs `grad_residual`".into()
        })?;
        for (name, tensor) in [
            ("weight_parts", self.weight_parts),
            ("bias_parts", self.bias_parts),
            ("residual_parts", self.residual_parts),
        ] {
            if let (Some(tensor), Some(parts)) = (tensor, self.parts()) {
                ensure_shape(Self::NAME, name, &tensor, &[parts, hidden])?;
                ensure_dtype(Self::NAME, name, &tensor, DType::F32)?;
            }
        }
        ensure(Self::NAME, self.parts() != Some(0), || "there are 0 parts of a gradient".into())
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.input, self.weight, self.rstd, self.grad_output], [self.grad_input])
            .reads(self.mean)
            .reads(self.grad_residual)
            .writes(self.all_parts())
    }

    tensors! {
        input, weight, mean, rstd, grad_output, grad_residual, grad_input, weight_parts, bias_parts, residual_parts
    }
}
