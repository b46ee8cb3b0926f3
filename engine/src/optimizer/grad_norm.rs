//! The gradient norm over all parameters of all ranks.

use std::rc::Rc;
use std::sync::Arc;

use device::ops::{Collective, CollectiveKind, SquareSum};
use device::{Communicator, DType, Tensor};
use graph_manager::Result;

use crate::params::{ParamSpec, Params, TiedCopy};
use crate::step_policy::StepContext;

/// The groups of ranks that have other gradients than this rank. `None`: there are no such ranks.
pub(super) struct NormGroups {
    /// The data-parallel ranks, with a distributed optimizer: each owns a part.
    pub(super) data_parallel: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers.
    pub(super) tensor_parallel: Option<Rc<dyn Communicator>>,
    /// The stages of the pipeline.
    pub(super) pipeline: Option<Rc<dyn Communicator>>,
}

/// Sums the squares of all gradients, each counted on one rank.
pub(super) struct GradNorm {
    /// The gradients that this rank counts, f32.
    counted: Arc<[Tensor]>,
    groups: Vec<Rc<dyn Communicator>>,
}

impl GradNorm {
    /// A parameter that every rank of a tensor-parallel group stores whole counts on the first rank, and rows that a
    /// few ranks store copies of count on the first of these. A tied parameter counts on the first stage.
    pub(super) fn new(params: &Params, groups: NormGroups) -> GradNorm {
        let NormGroups { data_parallel, tensor_parallel, pipeline } = groups;
        let first = tensor_parallel.as_ref().is_none_or(|group| group.rank() == 0);
        let counted: Vec<Tensor> = if first {
            let buckets = params.buckets().filter(|bucket| bucket.tied != Some(TiedCopy::Replica));
            buckets.map(|bucket| params.optimizer_shard().of(bucket.grads)).collect()
        } else {
            let counted = |spec: &ParamSpec| spec.shard.is_some() && spec.tied != Some(TiedCopy::Replica);
            let sharded = params.iter().filter(|(spec, _)| counted(spec));
            let ranges = sharded.map(|(spec, param)| (param, param.owned.within(spec.counted())));
            let ranges = ranges.filter(|(_, range)| !range.is_empty());
            ranges.filter_map(|(param, range)| Some(param.grad?.view(range.start, [range.len()]))).collect()
        };
        let groups = data_parallel.into_iter().chain(tensor_parallel).chain(pipeline).collect();
        GradNorm { counted: counted.into(), groups }
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
