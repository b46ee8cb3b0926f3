//! Activation functions.

mod host;

use crate::cuda::{KernelFile, KernelOperation, LoadWidth, Queue, args, kernel_file, over_packs, over_rows};
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
    /// The factor in the exponent of [`Gate::ClampedSilu`].
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
        let arguments = args! { self.input, self.grad_output, self.grad_input; U64: count };
        queue.launch(&load.kernel(name, dtype), grid, arguments)
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

/// The name of a gate's gradient in the names of kernels.
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
        let arguments = args! { self.input, self.output; U32: rows, width };
        queue.launch(&load.kernel(glu_name(self.gate), dtype), grid, arguments)
    }
}

impl KernelOperation for GluBackward {
    const FILES: &'static [KernelFile] = &[kernel_file!("products/activation.cu")];

    fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        let (rows, width, dtype) =
            (self.grad_output.shape.rows(), self.grad_output.shape.last(), self.grad_output.dtype);
        let load = LoadWidth::of(width, [self.input, self.grad_output, self.grad_input].into_iter().chain(self.output));
        let grid = over_rows(rows, width / load.values(dtype), queue);
        let arguments = args! { self.input, self.grad_output, self.grad_input, self.output; U32: rows, width };
        queue.launch(&load.kernel(glu_backward_name(self.gate), dtype), grid, arguments)
    }
}
