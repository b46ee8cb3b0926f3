//! Marks of how far a stream's work has come.

use super::{Accesses, Operation};
use crate::{Progress, Result};

/// Tells the host, in stream order, that a stream's work has come this far; see [`Progress`], which makes it.
#[derive(Clone, Debug)]
pub struct Mark {
    pub(crate) progress: Progress,
    pub(crate) lane: usize,
    pub(crate) value: u32,
}

impl Mark {
    /// What the host device does.
    pub(crate) fn leave(&self) {
        self.progress.mark(self.lane, self.value);
    }
}

impl Operation for Mark {
    const NAME: &'static str = "mark";

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        Accesses::default()
    }
}
