//! Copies in an 8-bit floating type, and their scales.
//!
//! A value is the number in memory times its scale: `x ≈ q * scale`. On GPUs of compute capability 9.0 a product of
//! 8-bit factors reads both along the rows. So a factor of several products has two copies: one in its own layout and a
//! transposed one.

pub(super) mod host;
pub(super) mod launch;

use std::iter::once;

use crate::ops::trainer::norms::check_mean;
use crate::ops::{
    Accesses, ActivationKind, Gate, HasTensors, Operation, ensure, ensure_dtype, ensure_elements, ensure_float,
    ensure_values, tensors,
};
use crate::{DType, Result, Shape, Tensor};

/// A matrix in an 8-bit floating type, with its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8Matrix {
    /// `(rows, columns)`, of [`DType::F8E4M3`] or [`DType::F8E5M2`].
    pub values: Tensor,
    /// The factor of the values.
    pub scale: Scale,
}

impl HasTensors for Fp8Matrix {
    tensors! { values, scale }
}

/// The scales of an [`Fp8Matrix`], f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// `(1)`: the same for all values. Quantising reads it. 0 means that it is not known yet: all values become 0.
    Tensor(Tensor),
    /// `(rows)`: one for each row of the matrix. Quantising writes them: the largest magnitude of a row becomes the
    /// largest number of the type.
    Rows(Tensor),
    /// `(ceil(columns / 128), rows)`: one for each 128 neighbours in a row, the last ones may be fewer. Quantising
    /// writes them: the smallest power of two that leaves no value beyond the largest number of the type. It is 1 for
    /// zeros, and NaN if a value is not finite. [`Scale::group_shape`] is the shape.
    Groups(Tensor),
    /// `(ceil(rows / 128), ceil(columns / 128))`, each row padded with zeros to a multiple of 4: one for each block of
    /// 128 x 128 values, fewer at the ends. Its value is as for [`Scale::Groups`], [`Scale::block_shape`] is the shape.
    Blocks(Tensor),
}

impl HasTensors for Scale {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        match self {
            Scale::Tensor(tensor) | Scale::Rows(tensor) | Scale::Groups(tensor) | Scale::Blocks(tensor) => each(tensor),
        }
    }
}

impl Scale {
    /// The tensor of the scales.
    pub fn tensor(&self) -> Tensor {
        match *self {
            Scale::Tensor(tensor) | Scale::Rows(tensor) | Scale::Groups(tensor) | Scale::Blocks(tensor) => tensor,
        }
    }
}

impl Fp8Matrix {
    /// Fails unless the matrix is of one of the two 8-bit types, with scales of the right number.
    pub(crate) fn check(&self, op: &'static str, name: &str, rows: usize, columns: usize) -> Result<()> {
        let (values, scale) = (&self.values, self.scale.tensor());
        ensure(op, values.dtype.is_fp8(), || format!("`{name}` is {}, needs an 8-bit floating type", values.dtype))?;
        ensure(op, values.shape.rows() == rows && values.shape.last() == columns, || {
            format!("`{name}` is {:?}, needs ({rows}, {columns})", values.shape)
        })?;
        ensure_dtype(op, "scale", &scale, DType::F32)?;
        match self.scale {
            Scale::Tensor(_) => ensure_elements(op, "scale", &scale, 1),
            Scale::Rows(_) => ensure_elements(op, "scale", &scale, rows),
            by_block => by_block.check_blocks(op, values.dtype, rows, columns),
        }
    }
}

/// A source to quantise: a matrix `(rows, columns)` that lies in memory, or that is computed from others and never
/// stored itself. The inputs are bf16 or f32, all of one type; values are computed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeSource {
    /// `(rows, columns)`.
    Stored(Tensor),
    /// `(rows, columns)`, each value rounded to bf16 first, as in a bf16 copy of an f32 matrix.
    Rounded(Tensor),
    /// `(input - mean) * rstd * (weight_offset + weight) + bias`: the output of a [`Norm`](crate::ops::Norm) that has written its statistics.
    Norm {
        /// `(rows, columns)`: the norm's `sum` if it has one, else its input.
        input: Tensor,
        /// `(rows)`, f32; LayerNorm only.
        mean: Option<Tensor>,
        /// `(rows)`, f32.
        rstd: Tensor,
        /// `(columns)`.
        weight: Tensor,
        /// Of the norm's kind.
        weight_offset: f32,
        /// `(columns)`.
        bias: Option<Tensor>,
    },
    /// `f(input)`, as [`Activation`](crate::ops::Activation).
    Activation {
        /// The function.
        kind: ActivationKind,
        /// `(rows, columns)`.
        input: Tensor,
    },
    /// `grad_output * f'(input)`, as [`ActivationBackward`](crate::ops::ActivationBackward).
    ActivationBackward {
        /// The function.
        kind: ActivationKind,
        /// `(rows, columns)`.
        input: Tensor,
        /// `(rows, columns)`.
        grad_output: Tensor,
    },
    /// `f(gate) * up`, as [`Glu`](crate::ops::Glu).
    Glu {
        /// The function.
        gate: Gate,
        /// `(rows, 2 columns)`: `[gate | up]`.
        input: Tensor,
    },
    /// The gradient of `[gate | up]`, as [`GluBackward`](crate::ops::GluBackward).
    GluBackward {
        /// The function.
        gate: Gate,
        /// `(rows, columns)`: `[gate | up]`.
        input: Tensor,
        /// `(rows, columns / 2)`.
        grad_output: Tensor,
    },
}

impl HasTensors for QuantizeSource {
    fn each_tensor(&mut self, each: &mut dyn FnMut(&mut Tensor)) {
        match self {
            QuantizeSource::Stored(input)
            | QuantizeSource::Rounded(input)
            | QuantizeSource::Activation { input, .. }
            | QuantizeSource::Glu { input, .. } => each(input),
            QuantizeSource::Norm { input, mean, rstd, weight, bias, .. } => {
                once(input).chain(mean).chain([rstd, weight]).chain(bias).for_each(each);
            }
            QuantizeSource::ActivationBackward { input, grad_output, .. }
            | QuantizeSource::GluBackward { input, grad_output, .. } => {
                [input, grad_output].into_iter().for_each(each);
            }
        }
    }
}

impl QuantizeSource {
    /// The tensors that the matrix is computed from, but for the statistics of a norm. All are of one type.
    pub(super) fn inputs(&self) -> Vec<(&'static str, Tensor)> {
        match *self {
            QuantizeSource::Stored(input)
            | QuantizeSource::Rounded(input)
            | QuantizeSource::Activation { input, .. }
            | QuantizeSource::Glu { input, .. } => vec![("input", input)],
            QuantizeSource::Norm { input, weight, bias, .. } => {
                let bias = bias.map(|bias| ("bias", bias));
                [("input", input), ("weight", weight)].into_iter().chain(bias).collect()
            }
            QuantizeSource::ActivationBackward { input, grad_output, .. }
            | QuantizeSource::GluBackward { input, grad_output, .. } => {
                vec![("input", input), ("grad_output", grad_output)]
            }
        }
    }

    /// All tensors that the matrix is computed from.
    pub(super) fn reads(&self) -> Vec<Tensor> {
        let statistics = match *self {
            QuantizeSource::Norm { mean, rstd, .. } => vec![Some(rstd), mean],
            _ => Vec::new(),
        };
        self.inputs().into_iter().map(|(_, tensor)| tensor).chain(statistics.into_iter().flatten()).collect()
    }

    /// The type of the source's inputs.
    pub fn dtype(&self) -> DType {
        self.inputs()[0].1.dtype
    }

    /// The matrix's shape: `(..., columns)`, with the leading axes of its input.
    pub fn shape(&self) -> Shape {
        let mut sizes = self.inputs()[0].1.shape.sizes().to_vec();
        if let (QuantizeSource::Glu { .. }, Some(last)) = (self, sizes.last_mut()) {
            *last /= 2;
        }
        Shape::new(&sizes)
    }

    /// `(rows, columns)` of the matrix.
    pub fn dimensions(&self) -> (usize, usize) {
        match *self {
            QuantizeSource::Stored(input)
            | QuantizeSource::Rounded(input)
            | QuantizeSource::Norm { input, .. }
            | QuantizeSource::Activation { input, .. }
            | QuantizeSource::ActivationBackward { input, .. }
            | QuantizeSource::GluBackward { input, .. } => (input.shape.rows(), input.shape.last()),
            QuantizeSource::Glu { input, .. } => (input.shape.rows(), input.shape.last() / 2),
        }
    }

    pub(super) fn check(&self, op: &'static str) -> Result<()> {
        let (rows, columns) = self.dimensions();
        ensure_float(op, &self.inputs())?;
        match self {
            QuantizeSource::Stored(_) | QuantizeSource::Rounded(_) | QuantizeSource::Activation { .. } => Ok(()),
            QuantizeSource::Norm { mean, rstd, weight, bias, .. } => {
                ensure_elements(op, "weight", weight, columns)?;
                bias.map_or(Ok(()), |bias| ensure_elements(op, "bias", &bias, columns))?;
                check_mean(op, *mean, rows)?;
                ensure_values(op, "rstd", rstd, DType::F32, rows)
            }
            QuantizeSource::ActivationBackward { grad_output, .. } => {
                ensure_elements(op, "grad_output", grad_output, rows * columns)
            }
            QuantizeSource::Glu { input, .. } => ensure(op, input.shape.last().is_multiple_of(2), || {
                format!("`[gate | up]` is {:?}, needs an even last axis", input.shape)
            }),
            QuantizeSource::GluBackward { input, grad_output, .. } => {
                let halves = grad_output.shape.rows() == rows && 2 * grad_output.shape.last() == columns;
                ensure(op, halves, || {
                    let (wide, narrow) = (input.shape, grad_output.shape);
                    format!("`[gate | up]` is {wide:?}, needs twice the last axis of {narrow:?}")
                })
            }
        }
    }
}

/// Makes 8-bit copies of a matrix, in one pass over it. The same pass can find its largest magnitude, and its column
/// sums. For the gradient of a linear layer's output, these sums are the bias gradient.
///
/// A value `x` becomes the number nearest to `x * (1 / scale)`. Each output is optional.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantize {
    /// The matrix `(rows, columns)`.
    pub source: QuantizeSource,
    /// `(rows, columns)`.
    pub rows: Option<Fp8Matrix>,
    /// `(columns, rows)`: the transposed copy. Its scale is one for the whole tensor, or there is one for each group or for
    /// each block, as for `rows`. Sizes are then multiples of 16, and addresses of 16 bytes. It has a scale for each of its
    /// rows only if the matrix is stored.
    pub columns: Option<Fp8Matrix>,
    /// `(1)`, f32, updated: the larger of its earlier value and the largest magnitude. NaN and infinities are kept as
    /// they are found: both are larger than all numbers.
    pub amax: Option<Tensor>,
    /// `(columns)`, f32: sums over all rows, in fixed chunks.
    pub sums: Option<Tensor>,
    /// Add to `sums` instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for Quantize {
    const NAME: &'static str = "quantize";

    fn check(&self) -> Result<()> {
        let (rows, columns) = self.source.dimensions();
        self.source.check(Self::NAME)?;
        if let Some(matrix) = &self.rows {
            matrix.check(Self::NAME, "rows", rows, columns)?;
        }
        if let Some(matrix) = &self.columns {
            matrix.check(Self::NAME, "columns", columns, rows)?;
            let stored = matches!(self.source, QuantizeSource::Stored(_) | QuantizeSource::Rounded(_));
            ensure(Self::NAME, stored || !matches!(matrix.scale, Scale::Rows(_)), || {
                "the transposed copy of a matrix that is not stored has no scale for each of its rows".into()
            })?;
        }
        self.check_blocks(Self::NAME)?;
        if let Some(amax) = &self.amax {
            ensure_values(Self::NAME, "amax", amax, DType::F32, 1)?;
        }
        if let Some(sums) = &self.sums {
            ensure_values(Self::NAME, "sums", sums, DType::F32, columns)?;
        }
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        let mut all = Accesses::new(self.source.reads(), []);
        for matrix in self.rows.iter().chain(&self.columns) {
            all.writes.push(matrix.values);
            match matrix.scale {
                Scale::Tensor(scale) => all.reads.push(scale),
                Scale::Rows(scales) | Scale::Groups(scales) | Scale::Blocks(scales) => all.writes.push(scales),
            }
        }
        all.reads(self.amax).writes(self.amax).reads(self.sums.filter(|_| self.accumulate)).writes(self.sums)
    }

    tensors! { source, rows, columns, amax, sums }
}

/// The scale of a matrix that is about to be quantised: the largest magnitude becomes the largest number of the type.
/// It is 0, so not known, for a matrix of zeros. It is NaN if a value is not finite, so that all products of the matrix
/// show it.
///
/// If ranks have parts of a matrix, the largest of their scales is that of the whole. A maximum over ranks may drop
/// NaN; the bytes of a value that is not finite are NaN whatever the scale.
#[derive(Clone, Debug, PartialEq)]
pub struct MakeScale {
    /// The matrix `(rows, columns)`.
    pub source: QuantizeSource,
    /// The type that the quantised matrix will have.
    pub dtype: DType,
    /// `(1)`, f32, written.
    pub scale: Tensor,
    /// Leave a scale that is known.
    pub keep_known: bool,
}

impl Operation for MakeScale {
    const NAME: &'static str = "make_scale";

    fn check(&self) -> Result<()> {
        self.source.check(Self::NAME)?;
        ensure(Self::NAME, self.dtype.is_fp8(), || format!("{} is no 8-bit floating type", self.dtype))?;
        ensure_values(Self::NAME, "scale", &self.scale, DType::F32, 1)
    }

    fn accesses(&self) -> Accesses {
        let known = self.keep_known.then_some(self.scale);
        Accesses::new(self.source.reads(), [self.scale]).reads(known)
    }

    tensors! { source, scale }
}

/// New scales of many tensors from their largest magnitudes: `scale = amax * 2^margin / largest`. Sets the magnitudes to 0
/// for the next step.
///
/// This is delayed scaling (Micikevicius et al., 2022): `amax` is the largest of the magnitudes of this step and the
/// last `length - 1` ones. A magnitude that is 0 or not finite says nothing, and does not enter the history. With an
/// empty history, a scale that is 0 or not finite becomes `default`, and another one stays.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateScales {
    /// `(n)`, f32, set to 0.
    pub amax: Tensor,
    /// `(n, length)`, f32, updated: the magnitudes of earlier steps, the newest first. 0 for a step without one.
    pub history: Tensor,
    /// `(n)`, f32: the largest number of each tensor's type.
    pub largest: Tensor,
    /// `(n)`, f32, updated.
    pub scale: Tensor,
    /// Powers of two that are left free above the largest magnitude.
    pub margin: i32,
    /// The scale of a tensor before any magnitude of it is known.
    pub default: f32,
}

impl Operation for UpdateScales {
    const NAME: &'static str = "update_scales";

    fn check(&self) -> Result<()> {
        let n = self.amax.elements();
        for (name, tensor) in [("amax", self.amax), ("largest", self.largest), ("scale", self.scale)] {
            ensure_values(Self::NAME, name, &tensor, DType::F32, n)?;
        }
        ensure_dtype(Self::NAME, "history", &self.history, DType::F32)?;
        ensure(Self::NAME, self.history.shape.rows() == n && self.history.shape.last() > 0, || {
            format!("`history` is {:?}, needs {n} rows", self.history.shape)
        })?;
        ensure(Self::NAME, self.margin.abs() < 100, || format!("a margin of 2^{} leaves nothing", self.margin))
    }

    tensors! { update amax, history; read largest; update scale }
}
