//! Copies, sums and constants.

use super::{HasTensors, Operation, SequenceShare, ensure, ensure_apart, ensure_elements, ensure_float, tensors};
use crate::{DType, Result, Tensor};

/// `output = a + b`, elementwise. `output` may be `a`, and must not overlap with `a` or `b` otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {
    /// Any shape.
    pub a: Tensor,
    /// As many elements.
    pub b: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Add {
    const NAME: &'static str = "add";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("a", self.a), ("b", self.b), ("output", self.output)])?;
        ensure_elements(Self::NAME, "b", &self.b, self.a.elements())?;
        ensure_elements(Self::NAME, "output", &self.output, self.a.elements())?;
        let is_a = self.output.address == self.a.address && self.output.dtype == self.a.dtype;
        ensure_apart(Self::NAME, ("b", &self.b), &self.output)?;
        if is_a { Ok(()) } else { ensure_apart(Self::NAME, ("a", &self.a), &self.output) }
    }

    tensors! { read a, b; write output }
}

/// `output = factor * input`, elementwise, with a factor in device memory, such as a temperature or a loss scale. Graphs
/// read it anew at each replay: the host writes it in between ([`Stream::write`](crate::Stream::write)), or an operation
/// does. `output` may be `input`, and must not overlap with it otherwise. The gradient of the input is the same operation on
/// the output's.
#[derive(Clone, Debug, PartialEq)]
pub struct Multiply {
    /// Any shape.
    pub input: Tensor,
    /// `(1)`, f32.
    pub factor: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Multiply {
    const NAME: &'static str = "multiply";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        super::ensure_dtype(Self::NAME, "factor", &self.factor, DType::F32)?;
        ensure_elements(Self::NAME, "factor", &self.factor, 1)?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())?;
        ensure_apart(Self::NAME, ("factor", &self.factor), &self.output)?;
        let in_place = self.output.address == self.input.address;
        if in_place { Ok(()) } else { ensure_apart(Self::NAME, ("input", &self.input), &self.output) }
    }

    tensors! { read input, factor; write output }
}

/// `output = input`, converted if the floating types differ (round to nearest even). They must not overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// Any shape and type.
    pub input: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Copy {
    const NAME: &'static str = "copy";

    fn check(&self) -> Result<()> {
        let float = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
        ensure(
            Self::NAME,
            self.input.dtype == self.output.dtype || (float(self.input.dtype) && float(self.output.dtype)),
            || format!("cannot convert {} to {}", self.input.dtype, self.output.dtype),
        )?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())?;
        ensure_apart(Self::NAME, ("input", &self.input), &self.output)
    }

    tensors! { read input; write output }
}

/// Copies ranges of columns, one or two: `output[row, c] = input[row, first + c]`, or of each range a share. Ranges may
/// overlap. For bf16 outputs f32 is converted (round to nearest even).
#[derive(Clone, Debug, PartialEq)]
pub struct CopyColumns {
    /// `(rows, width)`, i32 or f32.
    pub input: Tensor,
    /// The ranges, each with its output. All outputs are of one type.
    pub parts: [Option<ColumnRange>; 2],
}

/// Columns of a [`CopyColumns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnRange {
    /// First column in the input.
    pub first: usize,
    /// The columns of the range that are copied, if a range is a sequence.
    pub share: SequenceShare,
    /// `(rows, columns)`.
    pub output: Tensor,
}

impl HasTensors for ColumnRange {
    tensors! { output }
}

impl CopyColumns {
    /// Type of the outputs; the input's without any.
    pub(crate) fn output_dtype(&self) -> DType {
        self.parts.iter().flatten().next().map_or(self.input.dtype, |part| part.output.dtype)
    }
}

impl Operation for CopyColumns {
    const NAME: &'static str = "copy_columns";

    fn check(&self) -> Result<()> {
        let (rows, width) = (self.input.shape.rows(), self.input.shape.last());
        let (from, to) = (self.input.dtype, self.output_dtype());
        let known = matches!((from, to), (DType::I32, DType::I32) | (DType::F32, DType::F32 | DType::Bf16));
        ensure(Self::NAME, known, || format!("copies i32, f32, and f32 to bf16, not {from} to {to}"))?;
        for ColumnRange { first, share, output } in self.parts.iter().flatten() {
            super::ensure_dtype(Self::NAME, "output", output, to)?;
            let columns = share.ranks * output.shape.last();
            ensure(Self::NAME, output.shape.rows() == rows && first + columns <= width, || {
                let range = format!("columns {first} to {}", first + columns);
                format!("`output` is {:?}, {range} of an `input` of {:?}", output.shape, self.input.shape)
            })?;
        }
        Ok(())
    }

    tensors! { read input; write parts }
}

/// `output = value` everywhere; f32 or bf16.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Any shape.
    pub output: Tensor,
    /// The constant; it is part of the graph, so it never changes between steps.
    pub value: f32,
}

/// The value is compared by its bits: NaN is itself, and 0 is not -0.
impl PartialEq for Fill {
    fn eq(&self, other: &Fill) -> bool {
        self.output == other.output && self.value.to_bits() == other.value.to_bits()
    }
}

impl Operation for Fill {
    const NAME: &'static str = "fill";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("output", self.output)])
    }

    tensors! { write output }
}

/// Every byte of `output` becomes 0xFF: NaN in any floating type, an impossible token as i32.
/// Marks memory of dead values, so that a stray read shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Poison {
    /// Any shape and type.
    pub output: Tensor,
}

impl Operation for Poison {
    const NAME: &'static str = "poison";

    fn check(&self) -> Result<()> {
        Ok(())
    }

    tensors! { write output }
}

/// Bias gradient: `grad_bias[c] (+)= sum over rows of grad_output[row, c]`.
///
/// Rows are summed in fixed chunks, in f32, so the bits depend on the shape alone.
#[derive(Clone, Debug, PartialEq)]
pub struct BiasGrad {
    /// `(rows, c)`, f32 or bf16.
    pub grad_output: Tensor,
    /// `(c)`, f32.
    pub grad_bias: Tensor,
    /// Add to `grad_bias` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for BiasGrad {
    const NAME: &'static str = "bias_grad";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("grad_output", self.grad_output)])?;
        super::ensure_dtype(Self::NAME, "grad_bias", &self.grad_bias, DType::F32)?;
        ensure_elements(Self::NAME, "grad_bias", &self.grad_bias, self.grad_output.shape.last())
    }

    tensors! { read grad_output; add[accumulate] grad_bias }
}
