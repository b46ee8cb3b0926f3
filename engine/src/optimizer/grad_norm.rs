//! The gradient norm over all parameters of all ranks.

use std::rc::Rc;
use std::sync::Arc;

use device::ops::{Collective, CollectiveKind, SquareSum, SumInto};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::Result;

use crate::params::{BucketMemory, Param, ParamSpec, Params, TiedCopy};
use crate::step_policy::StepContext;

/// The groups of ranks that have gradients which this rank does not have. `None`: there are no such ranks.
pub(super) struct NormGroups {
    /// The data-parallel ranks, with a distributed optimizer: each owns a part.
    pub(super) data_parallel: Option<Rc<dyn Communicator>>,
    /// The ranks that share layers.
    pub(super) tensor_parallel: Option<Rc<dyn Communicator>>,
    /// The stages of the pipeline.
    pub(super) pipeline: Option<Rc<dyn Communicator>>,
}

/// Sums the squares of all gradients, each counted on one rank. Each bucket has a sum of its own, so that it may be
/// summed as soon as its gradients are final, beside the backward of the layer before.
pub(super) struct GradNorm {
    /// Those with gradients that this rank counts.
    buckets: Vec<BucketSquares>,
    /// `(buckets, 2)`, f32: the sums of squares, and what rounding took from them. So the norm is the same whichever
    /// parameters share a bucket.
    sums: Tensor,
    groups: Vec<Rc<dyn Communicator>>,
    _areas: Vec<Area>,
}

/// A bucket of which this rank counts gradients.
struct BucketSquares {
    /// The layer whose backward completes it.
    layer: usize,
    /// That backward, and the sum over data-parallel ranks, make its gradients final. Sums that come later change those that
    /// other stages or other tensor-parallel ranks share.
    final_after_layer: bool,
    /// What is counted of it, f32.
    counted: Arc<[Tensor]>,
}

impl GradNorm {
    /// A parameter that every rank of a tensor-parallel group stores whole counts on the first rank, and rows of which a few
    /// ranks store copies on the first of these. A tied parameter counts on the first stage.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(device: &Device, params: &Params, groups: NormGroups) -> Result<GradNorm> {
        let NormGroups { data_parallel, tensor_parallel, pipeline } = groups;
        let first_rank = tensor_parallel.as_ref().is_none_or(|group| group.rank() == 0);
        let first_layer = params.buckets().map(|bucket| bucket.layer).min();
        let squares = |bucket: BucketMemory| {
            let members = || members(params, &bucket);
            let counted: Arc<[Tensor]> = match first_rank {
                true => [params.optimizer_shard().of(bucket.grads)].into(),
                false => members().filter_map(|(spec, param)| counted_part(spec, param)).collect(),
            };
            let copied = members().any(|(spec, _)| spec.copied_rows().is_some());
            // No backward comes after that of the first layer.
            let final_after_layer = bucket.tied.is_none() && !copied && Some(bucket.layer) != first_layer;
            BucketSquares { layer: bucket.layer, final_after_layer, counted }
        };
        let buckets = params.buckets().filter(|bucket| bucket.tied != Some(TiedCopy::Replica)).map(squares);
        let buckets: Vec<_> = buckets.filter(|bucket| !bucket.counted.is_empty()).collect();
        let mut areas = Vec::new();
        let sums =
            device.allocate_tensor(&mut areas, "sums of squared gradients", [buckets.len().max(1), 2], DType::F32)?;
        device.zero(&sums)?;
        let groups = data_parallel.into_iter().chain(tensor_parallel).chain(pipeline).collect();
        Ok(GradNorm { buckets, sums, groups, _areas: areas })
    }

    /// The sums that need no later gradients than those of `layer`, for the regions after its backward to run.
    pub(super) fn of_layer(&self, cx: &StepContext<'_>, layer: usize) -> Vec<Op> {
        let of_layer = |bucket: &BucketSquares| is_early(cx, bucket) && bucket.layer == layer;
        self.of_buckets(of_layer).collect()
    }

    /// Sums of squares that make up that over all ranks, f32. What [`GradNorm::of_layer`] returned has run.
    ///
    /// # Errors
    /// A failed collective.
    pub(super) fn square_sums(&self, cx: &mut StepContext<'_>) -> Result<Tensor> {
        self.of_buckets(|bucket| !is_early(cx, bucket)).try_for_each(|op| cx.run(op))?;
        if self.groups.is_empty() {
            return Ok(self.sums);
        }
        let total = cx.tensor("square_sum", [1], DType::F32)?;
        cx.run(SumInto { input: self.sums, total, accumulate: false })?;
        for group in &self.groups {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), total))?;
        }
        Ok(total)
    }

    fn of_buckets(&self, chosen: impl Fn(&BucketSquares) -> bool) -> impl Iterator<Item = Op> {
        let chosen = self.buckets.iter().enumerate().filter(move |(_, bucket)| chosen(bucket));
        chosen.map(|(at, bucket)| SquareSum { inputs: bucket.counted.clone(), total: self.sums.at(at) }.into())
    }
}

/// Whether the bucket is summed beside the backward of the layer before. A graph of one layer would have to wait for
/// that, so there the update sums it.
fn is_early(cx: &StepContext<'_>, bucket: &BucketSquares) -> bool {
    bucket.final_after_layer && !cx.policy().captures_layers()
}

/// The parameters in a bucket.
fn members<'p>(params: &'p Params, bucket: &BucketMemory) -> impl Iterator<Item = (&'p ParamSpec, &'p Param)> {
    let grads = bucket.grads.range();
    params.iter().filter(move |(_, param)| param.grad.is_some_and(|grad| grads.contains(&grad.address)))
}

/// What a tensor-parallel rank that is not the first one counts of a parameter.
fn counted_part(spec: &ParamSpec, param: &Param) -> Option<Tensor> {
    spec.shard.as_ref()?;
    let range = param.owned.within(spec.counted());
    (!range.is_empty()).then(|| param.grad.map(|grad| grad.view(range.start, [range.len()])))?
}
