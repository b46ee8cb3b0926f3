//! A copy of bytes, between a device's memory and the host's.

use super::{Operation, ensure_apart, ensure_dtype, ensure_shape, tensors};
use crate::{Result, Tensor};

/// `output = input`, byte for byte. It is the only operation that may name memory of the [host](crate::Home::Host): others
/// compute in the device's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Any shape and type.
    pub input: Tensor,
    /// The same shape and type.
    pub output: Tensor,
}

impl Operation for Move {
    const NAME: &'static str = "move";

    fn check(&self) -> Result<()> {
        ensure_dtype(Self::NAME, "output", &self.output, self.input.dtype)?;
        ensure_shape(Self::NAME, "output", &self.output, self.input.shape.sizes())?;
        ensure_apart(Self::NAME, ("input", &self.input), &self.output)
    }

    tensors! { read input; write output }
}
