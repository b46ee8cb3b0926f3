//! What every operation tells about itself.

use super::Accesses;
use crate::{Result, Tensor};

/// What every operation tells about itself.
pub trait Operation: Clone + PartialEq {
    /// Its name in errors, reports and traces.
    const NAME: &'static str;

    /// The name of this value, for an operation whose name depends on it.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks shapes and types.
    ///
    /// # Errors
    /// [`Error::Operation`](crate::Error::Operation) with the shapes that do not fit.
    fn check(&self) -> Result<()>;

    /// What it reads and writes.
    fn accesses(&self) -> Accesses;

    /// The status of the step's gradients that it makes.
    fn makes_status(&self) -> Option<Tensor> {
        None
    }

    /// The status that says whether it writes anything. An operation before it in the step must make it: without that it would
    /// skip every step in silence.
    fn follows_status(&self) -> Option<Tensor> {
        None
    }

    /// Shows `visit` every tensor that it names, which `visit` may replace. The order is always the same. A tensor that is
    /// named twice is shown twice.
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Tensor));
}
