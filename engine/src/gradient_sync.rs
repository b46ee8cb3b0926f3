//! Sums of gradients over ranks, at two moments.
//!
//! A layer whose ranks compute partial sums completes them at the end of its backward of the last microbatch: of norms with
//! sequence parallelism, of routers, of key heads that several ranks store. Then every rank has the gradient of its tokens.
//!
//! Buckets of `main_grad` are summed over the ranks with other tokens, after the last microbatch's backward. Gradients
//! travel in f32, or in bf16 for half the traffic. In bf16 a bucket of f32 is rounded into a buffer, summed there, and
//! copied back. A bucket of gradients in bf16 is summed as it is.
//!
//! If ranks divide the optimizer's state, each receives the sum of its own part of the bucket (reduce-scatter). All
//! ranks receive the new weights of all parts (all-gather) in the next step, in the forward of the layer that is the
//! first to read them. If ranks divide weights too, each forward and each backward of a layer gathers them.
//!
//! The values of frozen weights that lie as codes are made where weights are gathered. If ranks divide weights, each has
//! a part of a layer's codes, and these are gathered first.
//!
//! If ranks divide gradients, a layer's are summed after each of its backwards, and each rank adds the sum of its part
//! to those of the microbatches before.
//!
//! When the transfers of buckets begin is the business of a [pass](crate::passes).

use std::ops::Range;
use std::rc::Rc;

use device::ops::{Add, CodedValues, Collective, CollectiveKind, Copy, Fill, MakeScale, Quantize};
use device::{Area, Communicator, DType, Device, Op, Tensor};
use graph_manager::Result;
use parallel::{Axis, Ranks};

use crate::layer_partition::StageLayers;
use crate::params::{
    BucketMemory, CodeMemory, CodesOfLayer, OwnedQuantized, Params, PartedWeights, PartialRange, QuantizedShard,
    Sharding, WeightSource,
};
use crate::step_policy::StepContext;

/// A use of weights in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The first microbatch's forward.
    First,
    /// A later forward.
    Later,
    /// A backward.
    Backward,
}

/// The divided gradients of a microbatch, as summands of a step's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summand {
    /// Gradients of the first microbatch, which overwrite the sum of the step before.
    First,
    /// Gradients of a later microbatch, which are added.
    Later,
}

impl Summand {
    /// The gradients of the microbatch with this number.
    pub fn of(microbatch: usize) -> Summand {
        if microbatch == 0 { Summand::First } else { Summand::Later }
    }
}

/// Sums gradients over ranks, and gathers the weights that each rank updated.
pub struct GradientSync {
    ranks: Rc<Ranks>,
    partial: Vec<PartialRange>,
    buckets: Vec<BucketMemory>,
    weights: Vec<PartedWeights>,
    /// The buffer for sums of gradients if that is not done in f32: flat, as large as the largest bucket. One bucket
    /// after the other has it.
    rounded: Option<Tensor>,
    _areas: Vec<Area>,
    /// The numbers of the layers on this rank by chunk, in the order of forward.
    chunks: Vec<Range<usize>>,
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
        let chunks = layers.chunks.clone();
        let mut areas = Vec::new();
        let mut rounded = None;
        let is_rounded = |bucket: &&BucketMemory| {
            travels != DType::F32 && bucket.grads.dtype != travels && ranks.place(bucket.sums).has_others()
        };
        if let Some(largest) = buckets.iter().filter(is_rounded).map(|bucket| bucket.grads.elements()).max() {
            rounded = Some(device.allocate_tensor(&mut areas, "rounded gradients", [largest], travels)?);
        }
        let (partial, weights) = (params.partial_ranges(), params.parted_weights().collect());
        Ok(GradientSync { ranks, partial, buckets, weights, rounded, _areas: areas, chunks })
    }

    /// The layers of this rank, in the order of forward.
    pub fn layers(&self) -> Vec<usize> {
        self.chunks.iter().cloned().flatten().collect()
    }

    /// The rank's first layer. Its backward of the last microbatch is the step's last.
    pub fn first_layer(&self) -> Option<usize> {
        self.chunks.first().map(|chunk| chunk.start)
    }

    /// The layer that comes after `layer` in the forward of the layer's chunk.
    pub fn after_in_chunk(&self, layer: usize) -> Option<usize> {
        self.chunks.iter().find(|chunk| chunk.contains(&layer) && chunk.contains(&(layer + 1))).map(|_| layer + 1)
    }

    /// The layer that comes before `layer` in the forward of the layer's chunk.
    pub fn before_in_chunk(&self, layer: usize) -> Option<usize> {
        let before = layer.checked_sub(1)?;
        self.after_in_chunk(before).map(|_| before)
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
    /// region, at its end, in the last microbatch, or in each one if ranks divide the layer's gradients.
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

    /// The operations that gather the weights that `layer` is the first to read: for their first use in a step all of
    /// which ranks have parts, for later ones those that are gathered for each use.
    pub fn gather(&self, cx: &StepContext<'_>, layer: usize, used: Use) -> Vec<Op> {
        let of_layer = self.weights.iter().filter(|of| of.layer == layer);
        let gathered = of_layer.filter(|of| match used {
            Use::First => true,
            Use::Later => of.sharding == Sharding::Weights,
            Use::Backward => of.sharding == Sharding::Weights && of.backward_reads,
        });
        gathered.flat_map(|weights| self.gathers(cx, weights, used)).collect()
    }

    /// The operations that gather weights, or make weights from codes. 8-bit ones are quantised once a step.
    fn gathers(&self, cx: &StepContext<'_>, of: &PartedWeights, used: Use) -> Vec<Op> {
        let own = match &of.source {
            WeightSource::Parts(own) => own,
            WeightSource::Codes(codes) => return self.values_of_codes(of, *codes),
        };
        let Some(communicator) = self.ranks.over(of.rest) else { return Vec::new() };
        let (kind, input) = match of.owner {
            None => (CollectiveKind::AllGather, own.owned),
            // The other ranks only receive.
            Some(from) if own.owned.elements() == 0 => (CollectiveKind::Broadcast { from }, of.weights),
            Some(from) => (CollectiveKind::Broadcast { from }, own.owned),
        };
        let gather = Collective { kind, communicator: communicator.clone(), input, output: of.weights };
        let quantized = own.quantized.iter().filter(|_| used == Use::First);
        let quantized = quantized.flat_map(|part| quantization(cx, part, communicator));
        quantized.chain([gather.into()]).collect()
    }

    /// The operations that make weights from codes, after a gather if ranks divide the codes.
    fn values_of_codes(&self, of: &PartedWeights, CodesOfLayer { all, owned }: CodesOfLayer) -> Vec<Op> {
        let CodeMemory { form, codes, scales } = all;
        let parts = owned.into_iter().flat_map(|own| [(own.codes, codes), (own.scales, scales)]);
        let gathers = self.ranks.over(of.rest).into_iter().flat_map(|ranks| {
            let kind = CollectiveKind::AllGather;
            parts.clone().map(move |(input, output)| Collective { kind, communicator: ranks.clone(), input, output })
        });
        gathers.map(Op::from).chain([CodedValues { form, codes, scales, output: of.weights }.into()]).collect()
    }

    /// Whether any weights are gathered or made from codes.
    pub fn gathers_any(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Whether ranks divide gradients. Then a layer's sums come right after its backward, but for the step's last one,
    /// else after all backwards.
    pub fn divides(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.sharding >= Sharding::Gradients)
    }

    /// The operations that sum the buckets that the last backward of `layer` completes, but for divided gradients.
    pub fn reduce(&self, layer: usize) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == layer);
        let whole = of_layer.filter(|bucket| bucket.sharding < Sharding::Gradients);
        whole.flat_map(|bucket| self.reduction(bucket)).collect()
    }

    /// The operations that sum the divided gradients of `layer` in a microbatch over ranks, and keep or add this rank's part.
    pub fn scatter(&self, layer: usize, summand: Summand) -> Vec<Op> {
        let of_layer = self.buckets.iter().filter(|bucket| bucket.layer == layer);
        let divided = of_layer.filter(|bucket| bucket.sharding >= Sharding::Gradients);
        let with_part = |bucket: &BucketMemory| {
            let (sum, output) = (bucket.owned.of_tensor(bucket.grads), bucket.owned_grads);
            let keep = match summand {
                Summand::First => Copy { input: sum, output }.into(),
                Summand::Later => Add { a: output, b: sum, output }.into(),
            };
            let keep = Some(keep).filter(|_| output.elements() > 0);
            self.reduction(bucket).into_iter().chain(keep).collect::<Vec<Op>>()
        };
        divided.flat_map(with_part).collect()
    }

    /// The operations that sum a bucket over the ranks. With a divided state this rank receives the sum of the elements
    /// that it updates only, in their place.
    fn reduction(&self, bucket: &BucketMemory) -> Vec<Op> {
        let (grads, owned) = (bucket.grads, bucket.owned);
        let rounded = self.rounded.filter(|rounded| rounded.dtype != grads.dtype);
        let input = rounded.map_or(grads, |rounded| rounded.view(0, [grads.elements()]));
        let output = owned.of_tensor(input);
        let to_owners = self.ranks.over(bucket.rest).map(|communicator| {
            let communicator = communicator.clone();
            match bucket.owner {
                None => Collective { kind: CollectiveKind::ReduceScatterSum, communicator, input, output }.into(),
                Some(to) => Collective::in_place(CollectiveKind::ReduceSum { to }, communicator, input).into(),
            }
        });
        let others = self.ranks.chain(bucket.sums - bucket.rest).into_iter().filter(|_| owned.elements > 0);
        let sums = others.map(|group| Collective::in_place(CollectiveKind::AllReduceSum, group, output).into());
        let sums: Vec<Op> = to_owners.into_iter().chain(sums).collect();
        match rounded {
            Some(_) if !sums.is_empty() => {
                let rounded = Copy { input: grads, output: input }.into();
                let back = Copy { input: output, output: owned.of_tensor(grads) }.into();
                let back = Some(back).filter(|_| owned.elements > 0);
                [rounded].into_iter().chain(sums).chain(back).collect()
            }
            _ => sums,
        }
    }
}

/// The operations that quantise this rank's part of a bucket, with the scales of the whole weights.
fn quantization(cx: &StepContext<'_>, part: &QuantizedShard, ranks: &Rc<dyn Communicator>) -> Vec<Op> {
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
