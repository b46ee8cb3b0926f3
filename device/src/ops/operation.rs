//! The interface of every operation.

use super::Accesses;
use crate::{Result, Tensor};

/// The interface of every operation.
pub trait Operation: Clone + PartialEq {
    /// Its name in errors, reports and traces.
    const NAME: &'static str;
    /// The names that values have.
    const NAMES: &'static [&'static str] = &[Self::NAME];

    /// The name of this value. Some operations have several names.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks shapes and types.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) with the shapes that do not fit.
    fn check(&self) -> Result<()>;

    /// The tensors it reads and writes.
    fn accesses(&self) -> Accesses;

    /// The status of the step's gradients that it makes.
    fn makes_status(&self) -> Option<Tensor> {
        None
    }

    /// The status that decides whether it writes anything. An operation before it in the step must make that status.
    /// Otherwise it would skip every step in silence.
    fn follows_status(&self) -> Option<Tensor> {
        None
    }

    /// Shows `visit` every tensor that it names. `visit` may replace the tensor. The order is always the same. A tensor
    /// that is named twice is shown twice.
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor));
}
