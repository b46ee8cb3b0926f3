//! Gradients that each tensor-parallel rank has of its own tokens alone: those of norms under sequence parallelism.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Tensor};
use graph_manager::Result;

use crate::params::Params;
use crate::step_policy::StepContext;

/// Sums such gradients over the tensor-parallel group, once a step.
pub struct PartialGrads {
    communicator: Rc<dyn Communicator>,
    /// Ranges of `main_grad` with the layer whose backward completes them.
    ranges: Vec<(usize, Tensor)>,
}

impl PartialGrads {
    /// None where there are no such gradients.
    pub fn new(communicator: Option<Rc<dyn Communicator>>, params: &Params) -> Option<PartialGrads> {
        let ranges = params.grad_ranges(|spec| spec.partial);
        (!ranges.is_empty()).then_some(PartialGrads { communicator: communicator?, ranges })
    }

    /// Inside the last microbatch's backward region of `layer`, at its end: sums what the region completed.
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
