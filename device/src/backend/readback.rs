//! Values that a stream copies to the host.

use crate::cuda::PendingCopy;
use crate::{Element, Result};

/// A copy to the host that may still be under way.
pub struct Readback<T>(Values<T>);

enum Values<T> {
    Arrived(Vec<T>),
    Pending(PendingCopy),
}

impl<T: Element> Readback<T> {
    pub(crate) fn arrived(values: Vec<T>) -> Readback<T> {
        Readback(Values::Arrived(values))
    }

    pub(crate) fn pending(copy: PendingCopy) -> Readback<T> {
        Readback(Values::Pending(copy))
    }

    /// Waits for the copy and returns its values.
    ///
    /// # Errors
    /// On CUDA, a fault of the GPU's work before the copy. On the host, none.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            Values::Arrived(values) => Ok(values),
            Values::Pending(copy) => copy.wait(),
        }
    }
}
