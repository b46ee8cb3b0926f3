//! Sums of gradients over ranks, at two moments.
//!
//! A layer whose ranks compute partial sums completes them at the end of its backward of the last microbatch: of norms with
//! sequence parallelism, of routers, of key heads that several ranks store. Then every rank has the gradient of its tokens.
//!
//! Buckets of `main_grad` are summed over the ranks with other tokens, after the last microbatch's backward. Gradients
//! travel in f32, or in bf16 for half the traffic. In bf16 a bucket of f32 is rounded into a buffer, summed there, and
//! copied back. A bucket of gradients in bf16 is summed as it is.
//!
//! If ranks divide the optimizer's state, each receives the sum of its own part of the bucket (reduce-scatter). After the
//! update all ranks receive the new weights of all parts (all-gather). The bucket of the first layer is gathered right
//! after the update, each other one in the next step, by the forward of the layer that is the first to read it.
//!
//! When the transfers of buckets begin is the business of a [pass](crate::passes).

use std::collections::HashSet;
use std::rc::Rc;

use device::ops::{Collective, CollectiveKind, Copy, Fill, MakeScale, Quantize};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::Result;
use parallel::{Axis, Ranks};

use crate::layer_partition::StageLayers;
use crate::params::{BucketMemory, OwnedQuantized, Params, PartialRange, QuantizedPart, part_of};
use crate::step_policy::StepContext;

/// Sums gradients over ranks, and gathers the weights that each of them updated.
pub struct GradientSync {
    ranks: Rc<Ranks>,
    partial: Vec<PartialRange>,
    buckets: Vec<BucketMemory>,
    /// The buffer for sums of gradients if that is not done in f32: flat, as large as the largest bucket. One bucket
    /// after the other has it.
    rounded: Option<Tensor>,
    _areas: Vec<Area>,
    /// The numbers of the layers on this rank, in the order of forward.
    layers: Vec<usize>,
    /// Buckets are gathered in memory that several of them share.
    shares_buffers: bool,
}

impl GradientSync {
    /// Sums the gradients of all parameters. `layers` are the layers on this rank. `travels` is the type that buckets are
    /// summed in: f32 or bf16.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(device: &Device, params: &Params, layers: &StageLayers, travels: DType) -> Result<GradientSync> {
        let buckets: Vec<BucketMemory> = params.buckets().collect();
        let ranks = params.ranks().clone();
        let layers: Vec<usize> = layers.chunks.iter().cloned().flatten().collect();
        let starts: HashSet<u64> = buckets.iter().map(|bucket| bucket.weights.address).collect();
        let shares_buffers = starts.len() < buckets.len();
        let mut areas = Vec::new();
        let mut rounded = None;
        let is_rounded = |bucket: &&BucketMemory| {
            travels != DType::F32 && bucket.grads.dtype != travels && ranks.place(bucket.sums).has_others()
        };
        if let Some(largest) = buckets.iter().filter(is_rounded).map(|bucket| bucket.grads.elements()).max() {
            rounded = Some(device.allocate_tensor(&mut areas, "rounded gradients", [largest], travels)?);
        }
        let partial = params.partial_ranges();
        Ok(GradientSync { ranks, partial, buckets, rounded, _areas: areas, layers, shares_buffers })
    }

    /// The layers of this rank, in the order of forward.
    pub fn layers(&self) -> &[usize] {
        &self.layers
    }

    /// Whether buckets are gathered in memory that several of them share.
    pub fn shares_buffers(&self) -> bool {
        self.shares_buffers
    }

    /// Whether any gradient is summed over ranks.
    pub fn has_sums(&self) -> bool {
        !self.partial.is_empty() || !self.communicators().is_empty()
    }

    /// The communicators of the ranks with other tokens. None if this rank has all tokens.
    pub fn communicators(&self) -> Vec<Rc<dyn Communicator>> {
        self.ranks.chain(self.ranks.axes(Axis::Tokens))
    }

    /// The operations that sum a small tensor over the ranks with other tokens.
    pub fn sum(&self, tensor: Tensor) -> Vec<Op> {
        let sum = |group| Collective::in_place(CollectiveKind::AllReduceSum, group, tensor).into();
        self.communicators().into_iter().map(sum).collect()
    }

    /// Completes the gradients of which the backward region of `layer` computed partial sums. It is called inside that
    /// region, at its end, in the last microbatch.
    ///
    /// # Errors
    /// A failed collective.
    pub fn complete(&self, cx: &StepContext<'_>, layer: usize) -> Result<()> {
        for range in self.partial.iter().filter(|range| range.layer == layer) {
            if let Some(group) = self.ranks.over(range.over) {
                cx.run(Collective::in_place(CollectiveKind::AllReduceSum, group.clone(), range.grads))?;
            }
        }
        Ok(())
    }

    /// The operations that gather the buckets that `layer` is the first to read. None if each rank updates all weights.
    pub fn gather(&self, cx: &StepContext<'_>, layer: usize) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == layer);
        let transfers = |bucket: &BucketMemory| {
            let communicator = self.ranks.over(bucket.rest)?;
            let gather = Collective {
                kind: CollectiveKind::AllGather,
                communicator: communicator.clone(),
                input: bucket.owned_weights,
                output: bucket.weights,
            };
            let quantized = bucket.quantized.iter().flat_map(|part| quantization(cx, part, communicator));
            Some(quantized.chain([gather.into()]).collect::<Vec<Op>>())
        };
        of_layer.filter_map(transfers).flatten().collect()
    }

    /// The operations that sum the buckets that the backward of `layer` completes.
    pub fn reduce(&self, layer: usize) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == layer);
        of_layer.flat_map(|bucket| self.reduction(bucket)).collect()
    }

    /// The operations that sum a bucket over the ranks. With a divided state this rank receives the sum of its own part only.
    fn reduction(&self, bucket: &BucketMemory) -> Vec<Op> {
        let (grads, place) = (bucket.grads, self.ranks.place(bucket.rest));
        let rounded = self.rounded.filter(|rounded| rounded.dtype != grads.dtype);
        let input = rounded.map_or(grads, |rounded| rounded.view(0, [grads.elements()]));
        let output = part_of(place, input);
        let scatter = self.ranks.over(bucket.rest).map(|communicator| {
            let kind = CollectiveKind::ReduceScatterSum;
            Collective { kind, communicator: communicator.clone(), input, output }.into()
        });
        let others = self.ranks.chain(bucket.sums - bucket.rest).into_iter();
        let sums = others.map(|group| Collective::in_place(CollectiveKind::AllReduceSum, group, output).into());
        let sums: Vec<Op> = scatter.into_iter().chain(sums).collect();
        match rounded {
            Some(_) if !sums.is_empty() => {
                let rounded = Copy { input: grads, output: input }.into();
                let back = Copy { input: output, output: bucket.owned_grads }.into();
                [rounded].into_iter().chain(sums).chain([back]).collect()
            }
            _ => sums,
        }
    }
}

/// The operations that quantise this rank's part of a bucket, with the scales of the whole weights.
fn quantization(cx: &StepContext<'_>, part: &QuantizedPart, ranks: &Rc<dyn Communicator>) -> Vec<Op> {
    let scale = |weight: &OwnedQuantized| -> Op {
        let scale = weight.fp8.rows.scale.tensor();
        match weight.owned {
            Some((source, copy)) => MakeScale { source, dtype: copy.values.dtype, scale, keep_known: false }.into(),
            None => Fill { output: scale, value: 0.0 }.into(),
        }
    };
    let agree = Collective::in_place(CollectiveKind::AllReduceMax, ranks.clone(), part.scales);
    let quantize = |weight: &OwnedQuantized| {
        let Some((source, copy)) = weight.owned else { return Vec::new() };
        let quantize = Quantize { source, rows: Some(copy), columns: None, amax: None, sums: None, accumulate: false };
        let count = weight.fp8.counts.weight.counting(cx, source, copy);
        [quantize.into()].into_iter().chain(count.map(Op::from)).collect()
    };
    let scales = part.weights.iter().map(scale);
    scales.chain([agree.into()]).chain(part.weights.iter().flat_map(quantize)).collect()
}
