//! Sums of gradients over the ranks that share layers. Each rank has these parameters whole, but computes a part of
//! their gradients: from its own tokens with sequence parallelism, or from its own heads.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind};
use device::{Communicator, Tensor};
use graph_manager::Result;

use crate::params::Params;
use crate::step_policy::StepContext;

/// Sums such gradients over the tensor-parallel group, once a step.
pub struct PartialGradientSync {
    communicator: Rc<dyn Communicator>,
    /// Ranges of `main_grad`, each with the layer that completes it in backward.
    ranges: Vec<(usize, Tensor)>,
}

impl PartialGradientSync {
    /// `None` if there are no such gradients.
    pub fn new(communicator: Option<Rc<dyn Communicator>>, params: &Params) -> Option<PartialGradientSync> {
        let ranges = params.grad_ranges(|spec| spec.partial_gradient);
        (!ranges.is_empty()).then_some(PartialGradientSync { communicator: communicator?, ranges })
    }

    /// Sums the gradients that the backward region of `layer` completed. It is called inside that region, at its end,
    /// in the last microbatch.
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
