//! Communication as an operation of a stream.

use std::rc::Rc;

use super::{Accesses, Operation, ensure};
use crate::{Communicator, DType, Result, Tensor};

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Every rank ends with the sum over ranks, elementwise.
    AllReduceSum,
}

/// A collective over the ranks of a communicator, in place on `tensor`.
#[derive(Clone, Debug)]
pub struct Collective {
    /// Which collective.
    pub kind: CollectiveKind,
    /// Over whom.
    pub communicator: Rc<dyn Communicator>,
    /// f32, any shape, updated in place.
    pub tensor: Tensor,
}

impl Operation for Collective {
    const NAME: &'static str = "all_reduce";

    fn check(&self) -> Result<()> {
        ensure(Self::NAME, self.tensor.dtype == DType::F32, || format!("`tensor` is {}, needs f32", self.tensor.dtype))
    }

    fn accesses(&self) -> Accesses {
        Accesses::new([self.tensor], [self.tensor])
    }
}
