//! Progress marks as operations.

use super::{Accesses, Operation};
use crate::{ProgressMark, Result, Tensor};

impl Operation for ProgressMark {
    const NAME: &'static str = "mark";

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn accesses(&self) -> Accesses {
        Accesses::default()
    }

    fn visit(&mut self, _visit: &mut dyn FnMut(&mut Tensor)) {}
}
