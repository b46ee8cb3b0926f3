//! The gradient norm over all parameters of all ranks.
//!
//! The squares of a bucket can be summed as soon as its gradients are complete, beside the backward of the layer before
//! ([`GradNorm::begin`]). The rest is summed after all backwards. Either way the sums are those of fixed chunks, and are added in
//! a fixed order, so the norm has the same bits.

use std::rc::Rc;
use std::sync::Arc;

use device::ops::{AddPartialSums, Collective, CollectiveKind, PartialSquareSums};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::Result;

use crate::layer_partition::StageLayers;
use crate::params::{BucketMemory, Params, TiedCopy};
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

/// Sums the squares of all gradients, each counted on one rank.
pub(super) struct GradNorm {
    /// In the order in which backward completes them.
    buckets: Vec<CountedBucket>,
    /// All of them at once.
    all: PartialSquareSums,
    groups: Vec<Rc<dyn Communicator>>,
}

/// The gradients of a bucket that this rank counts.
struct CountedBucket {
    /// The layer whose backward completes the bucket.
    layer: usize,
    /// They are complete, once summed over data-parallel ranks, before the step's last backward begins.
    completes_early: bool,
    sums: PartialSquareSums,
}

impl GradNorm {
    /// A parameter that every rank of a tensor-parallel group stores whole counts on the first rank, and rows of which a few
    /// ranks store copies on the first of these. A tied parameter counts on the first stage.
    ///
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        device: &Device,
        areas: &mut Vec<Area>,
        params: &Params,
        layers: &StageLayers,
        groups: NormGroups,
    ) -> device::Result<GradNorm> {
        let NormGroups { data_parallel, tensor_parallel, pipeline } = groups;
        let counts_all = tensor_parallel.as_ref().is_none_or(|group| group.rank() == 0);
        let counted_buckets = params.buckets().filter(|bucket| bucket.tied != Some(TiedCopy::Replica));
        let inputs: Vec<(BucketMemory, Vec<Tensor>)> = counted_buckets
            .map(|bucket| {
                let whole = || vec![params.optimizer_shard().of(bucket.grads)];
                let inputs = if counts_all { whole() } else { sharded_gradients(params, &bucket) };
                (bucket, inputs)
            })
            .collect();
        let all: Arc<[Tensor]> = inputs.iter().flat_map(|(_, inputs)| inputs).copied().collect();
        let bytes = PartialSquareSums::bytes(&all);
        let partial = device.allocate_tensor(areas, "partial sums of squares", [bytes], DType::U8)?;
        // After all backwards, the ranks of a tensor-parallel group sum these rows, and stages sum tied gradients.
        let has_copied_rows = params.iter().any(|(spec, _)| spec.copied_rows().is_some());
        let first_layer = layers.all().next();
        let mut start = 0;
        let place = |(bucket, inputs): (BucketMemory, Vec<Tensor>)| {
            let bytes = PartialSquareSums::bytes(&inputs);
            let sums = PartialSquareSums { inputs: inputs.into(), partial: partial.view(start, [bytes]) };
            start += bytes;
            let completes_early = Some(bucket.layer) != first_layer && bucket.tied.is_none() && !has_copied_rows;
            CountedBucket { layer: bucket.layer, completes_early, sums }
        };
        let buckets = inputs.into_iter().map(place).collect();
        let groups = data_parallel.into_iter().chain(tensor_parallel).chain(pipeline).collect();
        Ok(GradNorm { buckets, all: PartialSquareSums { inputs: all, partial }, groups })
    }

    /// The operations that sum the squares of the buckets that the backward of `layer` completed, of those that are complete
    /// before the step's last backward begins. They come after the sum over data-parallel ranks, and before
    /// [`GradNorm::square_sum`].
    pub(super) fn begin(&self, layer: usize) -> impl Iterator<Item = Op> {
        let buckets = self.buckets.iter().filter(move |bucket| bucket.completes_early && bucket.layer == layer);
        buckets.map(|bucket| bucket.sums.clone().into())
    }

    /// The sum of squares over all ranks: `(1)`, f32. Where backwards began it, [`GradNorm::begin`] was called for all layers
    /// but the first.
    ///
    /// # Errors
    /// A failed collective.
    pub(super) fn square_sum(&self, cx: &mut StepContext<'_>) -> Result<Tensor> {
        if cx.policy().starts_on_complete_buckets() {
            let rest = self.buckets.iter().filter(|bucket| !bucket.completes_early);
            rest.map(|bucket| bucket.sums.clone()).try_for_each(|sums| cx.run(sums))?;
        } else {
            cx.run(self.all.clone())?;
        }
        let total = cx.tensor("square_sum", [1], DType::F32)?;
        cx.run(AddPartialSums { partial: self.all.partial, total })?;
        for group in &self.groups {
            cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), total))?;
        }
        Ok(total)
    }
}

/// The gradients of a bucket that no other rank of the tensor-parallel group has, as far as this rank updates them.
fn sharded_gradients(params: &Params, bucket: &BucketMemory) -> Vec<Tensor> {
    let owned = params.iter().filter(|(spec, _)| spec.shard.is_some()).filter_map(|(spec, param)| {
        let grad = param.grad.filter(|grad| bucket.has(*grad))?;
        let range = param.owned.within(spec.counted());
        (!range.is_empty()).then(|| grad.view(range.start, [range.len()]))
    });
    owned.collect()
}
