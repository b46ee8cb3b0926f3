//! Calls of the host that are part of a step.

use device::{Accesses, Stream, Tensor};

use crate::error::Result;

/// Gives a tensor of the recording the address that it has in the step.
pub(crate) type Addresses<'p> = &'p dyn Fn(Tensor) -> Tensor;

/// The code that is called, with the stream of its region.
pub(crate) type Call = Box<dyn Fn(&Stream, Addresses<'_>) -> Result<()>>;

/// Code that a step calls on the host each time, in its place in the list.
pub(crate) struct HostCall {
    pub(crate) name: &'static str,
    /// Tensors of the recording.
    pub(crate) accesses: Accesses,
    pub(crate) call: Call,
}
