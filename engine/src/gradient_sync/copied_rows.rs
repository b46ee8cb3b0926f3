//! Sums of gradients over ranks that share layers, for rows that a few of them store copies of: those of a key head, if
//! its query heads lie on several ranks. Each computes the gradient from its own query heads.

use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;

use crate::params::{CopiedRows, Params};
use crate::step_policy::StepContext;

/// Sums such gradients over the tensor-parallel group, once a step.
pub struct CopiedRowsSync {
    communicator: Rc<dyn Communicator>,
    /// This rank's part of `main_grad` of the rows of each parameter, flat: the elements that it updates. Other ranks
    /// of the group have as many of theirs.
    parameters: Vec<(CopiedRows, Tensor)>,
}

impl CopiedRowsSync {
    /// `None` if there are no such gradients.
    pub fn new(communicator: Option<Rc<dyn Communicator>>, params: &Params) -> Option<CopiedRowsSync> {
        let copied = params.iter().filter_map(|(spec, param)| {
            let (rows, grad) = (spec.copied_rows()?, param.grad?);
            let row: usize = spec.shape.sizes()[1..].iter().product();
            let range = param.owned.within(rows.first * row..spec.shape.elements());
            (!range.is_empty()).then(|| (rows, grad.view(range.start, [range.len()])))
        });
        let parameters: Vec<_> = copied.collect();
        (!parameters.is_empty()).then_some(CopiedRowsSync { communicator: communicator?, parameters })
    }

    /// Sums the gradients, after all backwards and after sums over data-parallel ranks. One sum over the group has a place for
    /// each part, so that no smaller groups of ranks are needed.
    ///
    /// # Errors
    /// A failed collective.
    pub fn sum(&self, cx: &mut StepContext<'_>) -> Result<()> {
        for (CopiedRows { part, parts, .. }, grads) in &self.parameters {
            let all = cx.tensor("grad_of_all_copied_rows", [*parts, grads.elements()], DType::F32)?;
            cx.run(Fill { output: all, value: 0.0 })?;
            cx.run(Copy { input: *grads, output: all.at(*part) })?;
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, self.communicator.clone(), all))?;
            cx.run(Copy { input: all.at(*part), output: *grads })?;
        }
        Ok(())
    }
}
