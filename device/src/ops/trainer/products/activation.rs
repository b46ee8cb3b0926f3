//! Activation functions.

use crate::ops::{Operation, ensure, ensure_elements, ensure_float, tensors};
use crate::{Result, Tensor};

/// The function of an [`Activation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationKind {
    /// GELU in its tanh form: `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (Hendrycks and Gimpel, 2016).
    Gelu,
    /// `max(x, 0)`, NaN staying NaN; its gradient at 0 is 0.
    Relu,
}

/// `output = f(input)`, elementwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Activation {
    /// The function.
    pub kind: ActivationKind,
    /// Any shape.
    pub input: Tensor,
    /// As many elements.
    pub output: Tensor,
}

impl Operation for Activation {
    const NAME: &'static str = "activation";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        ensure_elements(Self::NAME, "output", &self.output, self.input.elements())
    }

    tensors! { read input; write output }
}

/// `grad_input = grad_output * f'(input)`, elementwise.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivationBackward {
    /// The function.
    pub kind: ActivationKind,
    /// The forward's input.
    pub input: Tensor,
    /// As many elements.
    pub grad_output: Tensor,
    /// As many elements.
    pub grad_input: Tensor,
}

impl Operation for ActivationBackward {
    const NAME: &'static str = "activation_backward";

    fn check(&self) -> Result<()> {
        ensure_float(
            Self::NAME,
            &[("input", self.input), ("grad_output", self.grad_output), ("grad_input", self.grad_input)],
        )?;
        ensure_elements(Self::NAME, "grad_output", &self.grad_output, self.input.elements())?;
        ensure_elements(Self::NAME, "grad_input", &self.grad_input, self.input.elements())
    }

    tensors! { read input, grad_output; write grad_input }
}

/// The function that a [`Glu`] applies to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + e^-x)`: SwiGLU.
    Silu,
    /// [`ActivationKind::Gelu`]: GeGLU.
    Gelu,
    /// gpt-oss's: `g / (1 + e^(-1.702 g))` of a gate of at most 7, times 1 plus a gated value within -7 and 7. 8-bit
    /// copies do not compute it.
    ClampedSilu,
}

impl Gate {
    /// The bound of [`Gate::ClampedSilu`].
    pub const LIMIT: f32 = 7.0;
    /// The factor in its exponent.
    pub const SLOPE: f32 = 1.702;
}

/// A gated linear unit: `output = f(gate) * up`, with each row of `input` holding `[gate | up]` (Shazeer, 2020).
#[derive(Clone, Debug, PartialEq)]
pub struct Glu {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`.
    pub input: Tensor,
    /// `(rows, f)`.
    pub output: Tensor,
}

fn check_halves(op: &'static str, wide: &Tensor, narrow: &Tensor) -> Result<()> {
    ensure(op, wide.shape.last() == 2 * narrow.shape.last() && wide.shape.rows() == narrow.shape.rows(), || {
        format!("`[gate | up]` is {:?}, needs twice the last axis of {:?}", wide.shape, narrow.shape)
    })
}

impl Operation for Glu {
    const NAME: &'static str = "glu";

    fn check(&self) -> Result<()> {
        ensure_float(Self::NAME, &[("input", self.input), ("output", self.output)])?;
        check_halves(Self::NAME, &self.input, &self.output)
    }

    tensors! { read input; write output }
}

/// Gradient of [`Glu`] with respect to `[gate | up]`.
#[derive(Clone, Debug, PartialEq)]
pub struct GluBackward {
    /// The function.
    pub gate: Gate,
    /// `(rows, 2 f)`, the forward's input.
    pub input: Tensor,
    /// `(rows, f)`.
    pub grad_output: Tensor,
    /// `(rows, 2 f)`.
    pub grad_input: Tensor,
    /// `(rows, f)`, written if present: the forward's output, for a forward that did not save it.
    pub output: Option<Tensor>,
}

impl Operation for GluBackward {
    const NAME: &'static str = "glu_backward";

    fn check(&self) -> Result<()> {
        ensure_float(
            Self::NAME,
            &[("input", self.input), ("grad_output", self.grad_output), ("grad_input", self.grad_input)],
        )?;
        check_halves(Self::NAME, &self.input, &self.grad_output)?;
        check_halves(Self::NAME, &self.grad_input, &self.grad_output)?;
        let Some(output) = self.output else { return Ok(()) };
        ensure_float(Self::NAME, &[("input", self.input), ("output", output)])?;
        check_halves(Self::NAME, &self.input, &output)
    }

    tensors! { read input, grad_output; write grad_input, output }
}
