//! Sequence parallelism: sums of the gradients of parameters that every tensor-parallel rank has whole, such as those of
//! norms. Each rank's backward sees only its own tokens.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Tensor};
use graph_manager::Result;

use crate::params::Params;
use crate::step_policy::StepContext;

/// Sums such gradients over the tensor-parallel group, once a step.
pub struct SequenceParallelSync {
    communicator: Rc<dyn Communicator>,
    /// Ranges of `main_grad`, each with the layer whose backward completes it.
    ranges: Vec<(usize, Tensor)>,
}

impl SequenceParallelSync {
    /// `None` where there are no such gradients.
    pub fn new(communicator: Option<Rc<dyn Communicator>>, params: &Params) -> Option<SequenceParallelSync> {
        let ranges = params.grad_ranges(|spec| spec.sequence_parallel);
        (!ranges.is_empty()).then_some(SequenceParallelSync { communicator: communicator?, ranges })
    }

    /// Sums what the backward region of `layer` completed. It is called inside that region, at its end, in the last
    /// microbatch.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &StepContext<'_>, layer: usize) -> Result<()> {
        for (_, tensor) in self.ranges.iter().filter(|(of, _)| *of == layer) {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), *tensor))?;
        }
        Ok(())
    }
}
