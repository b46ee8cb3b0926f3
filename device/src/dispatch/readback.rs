//! Values that a stream copies to the host.

use std::rc::Rc;

use crate::cuda::PendingCopy;
use crate::sync_debug::{CostlyCall, SyncWatch};
use crate::{Element, Error, Result};

/// A copy to the host that may still be under way.
pub struct Readback<T> {
    values: Values<T>,
    watch: Rc<SyncWatch>,
}

enum Values<T> {
    Arrived(Vec<T>),
    Pending(PendingCopy),
    /// The copy was recorded: there are no values. The call that recorded it.
    Recorded(String),
}

impl<T: Element> Readback<T> {
    pub(crate) fn arrived(values: Vec<T>, watch: Rc<SyncWatch>) -> Readback<T> {
        Readback { values: Values::Arrived(values), watch }
    }

    pub(crate) fn pending(copy: PendingCopy, watch: Rc<SyncWatch>) -> Readback<T> {
        Readback { values: Values::Pending(copy), watch }
    }

    /// A copy that was only recorded by `call`.
    pub(crate) fn recorded(call: String, watch: Rc<SyncWatch>) -> Readback<T> {
        Readback { values: Values::Recorded(call), watch }
    }

    /// Waits for the copy and returns its values.
    ///
    /// # Errors
    /// [`Error::Recording`] for a copy that was recorded: it has no values. On CUDA, a fault of the GPU's work before the copy.
    pub fn wait(self) -> Result<Vec<T>> {
        if self.watch.is_on() {
            self.watch.note(CostlyCall::Waits, "Readback::wait".into(), "")?;
        }
        match self.values {
            Values::Arrived(values) => Ok(values),
            Values::Pending(copy) => copy.wait(),
            Values::Recorded(call) => Err(Error::recording(call)),
        }
    }
}
