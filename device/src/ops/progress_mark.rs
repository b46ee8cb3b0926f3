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

    fn each_tensor(&mut self, _each: &mut dyn FnMut(&mut Tensor)) {}
}
