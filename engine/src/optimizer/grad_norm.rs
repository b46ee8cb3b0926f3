//! The gradient norm over all parameters of all ranks.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use device::ops::{Collective, CollectiveKind, SquareSum};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;
use parallel::Axis;

use crate::params::{Param, ParamSpec, Params, Sharding, TiedCopy};
use crate::step_policy::StepContext;

/// Sums the squares of all gradients, each counted on one rank.
pub(super) struct GradNorm {
    /// The gradients that this rank counts.
    counted: Arc<[Tensor]>,
    groups: Vec<Rc<dyn Communicator>>,
}

impl GradNorm {
    /// The gradient norm's elements: an element that several ranks store counts on the first rank, and a tied parameter
    /// counts on the first stage. See [`Params::counted`].
    pub(super) fn new(params: &Params) -> GradNorm {
        let is_counted = |spec: &ParamSpec| !spec.frozen && spec.tied != Some(TiedCopy::Replica);
        let trained = || params.iter().enumerate().filter(|(_, (spec, _))| is_counted(spec));
        let elements = |index: usize| params.counted(index).iter().map(ExactSizeIterator::len).sum::<usize>();
        // The padding of divided gradients may have values of other layers.
        let is_whole = |(index, (spec, param)): (usize, (&ParamSpec, &Param))| {
            param.owned.elements == elements(index) && spec.sharding < Sharding::Gradients
        };
        let counted: Vec<Tensor> = match trained().all(is_whole) {
            // Whole buckets, with their padding, are fewer tensors.
            true => {
                let buckets = params.buckets().filter(|bucket| bucket.tied != Some(TiedCopy::Replica));
                buckets.map(|bucket| bucket.owned_grads).filter(|grads| grads.elements() > 0).collect()
            }
            false => {
                let ranges = trained().flat_map(|(index, (_, param))| {
                    let of = |range: Range<usize>| {
                        Some(param.owned_grad?.view(range.start - param.owned.first, [range.len()]))
                    };
                    params.counted(index).into_iter().filter_map(of)
                });
                ranges.collect()
            }
        };
        let ranks = params.ranks();
        GradNorm { counted: counted.into(), groups: ranks.chain(params.divided() | ranks.axes(Axis::Pipeline)) }
    }

    /// The sum of squares over all ranks: `(1)`, f32.
    ///
    /// # Errors
    /// A failed collective.
    pub(super) fn square_sum(&self, cx: &mut StepContext<'_>) -> Result<Tensor> {
        let total = cx.tensor("square_sum", [1], DType::F32)?;
        cx.run(SquareSum { inputs: self.counted.clone(), total })?;
        for group in &self.groups {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), total))?;
        }
        Ok(total)
    }
}
