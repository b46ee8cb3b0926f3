//! Buckets in memory, and the ranges of gradients that ranks compute in parts.

use std::ops::Range;

use device::ops::{Fp8Matrix, QuantizeSource};
use device::{DType, Tensor};
use parallel::Axes;

use super::flat_layout::{ALIGNMENT, Bucket};
use super::owned_range::OwnedRange;
use super::sharding::Sharding;
use super::weight_memory::ParamMemory;
use super::{CodeMemory, Params, TiedCopy, grads_of, of_home};
use crate::fp8::Fp8Param;

/// A bucket in memory. Its gradients are reduced at once.
#[derive(Clone, Debug)]
pub struct BucketMemory {
    /// The first layer with parameters in the bucket.
    pub layer: usize,
    /// The bucket's range of `main_grad`, f32 or bf16, flat.
    pub grads: Tensor,
    /// The ranks over which the bucket's gradients are summed.
    pub sums: Axes,
    /// The ranks of `sums` that divide masters and state.
    pub rest: Axes,
    /// The memory of the bucket that the ranks of `rest` divide. If that is gradients, `grads` has those of one microbatch.
    pub sharding: Sharding,
    /// The rank of `rest` that updates the whole bucket; `None` if each rank updates a part.
    pub owner: Option<usize>,
    /// The elements that this rank updates.
    pub owned: OwnedRange,
    /// The owned elements' gradients, flat: a part of `grads` unless ranks divide gradients.
    pub owned_grads: Tensor,
    /// The kind of tied copy, if the bucket has one parameter of which another stage has a copy.
    pub tied: Option<TiedCopy>,
}

/// Weights that lie elsewhere, or in parts, and that are made at once before layers read the weights.
#[derive(Clone, Debug)]
pub struct PartedWeights {
    /// The first layer with parameters among the weights.
    pub layer: usize,
    /// The weights that layers read, flat.
    pub weights: Tensor,
    /// The source of the weights.
    pub source: WeightSource,
    /// The ranks that have parts.
    pub rest: Axes,
    /// The rank of `rest` that has all weights; `None` if each rank has a part.
    pub owner: Option<usize>,
    /// The memory that the ranks of `rest` divide. If that is weights, the whole ones are there while the layer runs.
    pub sharding: Sharding,
    /// Whether backward reads the weights too. It does not read tables that forward looks rows up in.
    pub backward_reads: bool,
}

/// What the weights that layers read are made of.
#[derive(Clone, Debug)]
pub enum WeightSource {
    /// The parts of all ranks, which are gathered.
    Parts(OwnedShard),
    /// The weights' codes.
    Codes(CodesOfLayer),
}

/// The codes of a layer's weights.
#[derive(Clone, Copy, Debug)]
pub struct CodesOfLayer {
    /// The codes of the whole layer: where they lie, or where they are gathered.
    pub all: CodeMemory,
    /// The codes that a rank keeps, if ranks divide the codes.
    pub owned: Option<CodeMemory>,
}

/// A rank's shard of weights that are gathered.
#[derive(Clone, Debug)]
pub struct OwnedShard {
    /// The shard, flat.
    pub owned: Tensor,
    /// The quantised form, if the rank quantises the shard before a gather.
    pub quantized: Option<QuantizedShard>,
}

/// A range of `main_grad` that ranks compute in parts: partial sums.
#[derive(Clone, Copy, Debug)]
pub struct PartialRange {
    /// The layer that completes the partial sums in backward.
    pub layer: usize,
    /// The ranks.
    pub over: Axes,
    /// The gradients, f32 or bf16, flat.
    pub grads: Tensor,
}

/// A rank's shard of a bucket of 8-bit weights, which are gathered in 8 bits.
#[derive(Clone, Debug)]
pub struct QuantizedShard {
    /// The weights of the bucket, including weights without an element that this rank updates.
    pub weights: Vec<OwnedQuantized>,
    /// f32: the scales of these weights. The ranks must agree on them: they take the largest of theirs.
    pub scales: Tensor,
}

/// The elements of an 8-bit weight that this rank updates.
#[derive(Clone, Copy, Debug)]
pub struct OwnedQuantized {
    /// The weight.
    pub fp8: Fp8Param,
    /// The masters that this rank owns, and the masters' 8-bit copy, as matrices of any shape. `None` if this rank owns
    /// none.
    pub owned: Option<(QuantizeSource, Fp8Matrix)>,
}

impl Params {
    /// The buckets, in the order of completion in backward: from the last layer to the first.
    pub fn buckets(&self) -> impl Iterator<Item = BucketMemory> {
        let memory = |bucket: &Bucket| {
            let all_grads = grads_of(self.grads, &self.layout, bucket.home.grads);
            let grads = all_grads.view(bucket.start, [bucket.elements]);
            let owned_grads = all_grads.view(bucket.part_start, [bucket.owned.elements]);
            let &Bucket { layer, sums, home: ParamMemory { rest, sharding, .. }, owner, owned, tied, .. } = bucket;
            BucketMemory { layer, grads, sums, rest, sharding, owner, owned, owned_grads, tied }
        };
        self.layout.buckets.iter().map(memory)
    }

    /// The weights of which ranks have parts or codes, in the order of the buckets, frozen weights last.
    pub fn parted_weights(&self) -> impl Iterator<Item = PartedWeights> {
        let memory = |bucket: &Bucket| {
            let of_memory = of_home(&self.weights, bucket.home);
            let in_turn = || of_memory.turns[bucket.turn.buffer].view(bucket.turn.start, [bucket.elements]);
            let &Bucket { layer, home: ParamMemory { rest, sharding, .. }, owner, owned, .. } = bucket;
            let mut members = self.specs.iter().zip(&self.layout.params).filter(|(_, place)| bucket.has(place));
            let backward_reads = members.any(|(spec, _)| !spec.sparse);
            if let Some(here) = of_memory.codes {
                let codes = match of_memory.gathered_codes {
                    None => CodesOfLayer { all: here.part(bucket.weights_start, bucket.elements), owned: None },
                    Some(gathered) => CodesOfLayer {
                        all: gathered.part(bucket.turn.start, bucket.elements),
                        owned: Some(here.part(bucket.owned_start, owned.elements)),
                    },
                };
                let source = WeightSource::Codes(codes);
                return PartedWeights { layer, weights: in_turn(), source, rest, owner, sharding, backward_reads };
            }
            let (weights, own) = match bucket.home.memory.is_gathered() {
                false => {
                    let weights = of_memory.weights.view(bucket.weights_start, [bucket.elements]);
                    (weights, owned.of_tensor(weights))
                }
                true => (in_turn(), of_memory.weights.view(bucket.owned_start, [owned.elements])),
            };
            let quantized = weights.dtype.is_fp8().then(|| self.quantized_part(bucket)).flatten();
            PartedWeights {
                layer,
                weights,
                source: WeightSource::Parts(OwnedShard { owned: own, quantized }),
                rest,
                owner,
                sharding,
                backward_reads,
            }
        };
        let is_made = |bucket: &&Bucket| bucket.place.has_others() || bucket.home.memory.takes_turns();
        self.layout.buckets.iter().chain(&self.layout.frozen).filter(is_made).map(memory)
    }

    /// This rank's part of a bucket with weights that are gathered in 8 bits.
    fn quantized_part(&self, bucket: &Bucket) -> Option<QuantizedShard> {
        let members = self.params.iter().zip(&self.layout.params).filter(|(_, place)| bucket.has(place));
        let weights: Vec<OwnedQuantized> = members
            .filter_map(|(param, place)| {
                let fp8 = param.fp8?;
                let own = of_home(&self.weights, place.home).weights;
                // All parts begin and end at multiples of the alignment.
                let shape = [param.owned.elements / ALIGNMENT, ALIGNMENT];
                let owned = (param.owned.elements > 0).then(|| {
                    let values = own.view(place.master, shape);
                    let source = QuantizeSource::Rounded(param.master.reshape(shape));
                    (source, Fp8Matrix { values, scale: fp8.rows.scale })
                });
                Some(OwnedQuantized { fp8, owned })
            })
            .collect();
        let params: Vec<Fp8Param> = weights.iter().map(|weight| weight.fp8).collect();
        let scales = self.fp8.scales_of(&params)?;
        Some(QuantizedShard { weights, scales })
    }

    /// The ranges of `main_grad` of which ranks compute partial sums, in order. Neighbours of one layer form one range.
    pub fn partial_ranges(&self) -> Vec<PartialRange> {
        /// A range of the gradients of one type.
        struct Elements {
            layer: usize,
            over: Axes,
            dtype: DType,
            range: Range<usize>,
        }
        let mut ranges: Vec<Elements> = Vec::new();
        for (spec, place) in self.specs.iter().zip(&self.layout.params) {
            let Some(start) = place.grad else { continue };
            for (part, stored) in spec.spread.parts.iter().zip(spec.stored_parts(&self.ranks)) {
                if !self.ranks.place(part.partial).has_others() {
                    continue;
                }
                let (first, end) = (start + stored.start, start + stored.end);
                let dtype = place.home.grads;
                let joins = |before: &&mut Elements| {
                    let meets = before.range.end == first || before.range.end.next_multiple_of(ALIGNMENT) == first;
                    (before.layer, before.over, before.dtype) == (spec.layer, part.partial, dtype) && meets
                };
                match ranges.last_mut().filter(joins) {
                    Some(before) => before.range.end = end,
                    None => {
                        ranges.push(Elements { layer: spec.layer, over: part.partial, dtype, range: first..end });
                    }
                }
            }
        }
        let range = |Elements { layer, over, dtype, range }: Elements| PartialRange {
            layer,
            over,
            grads: grads_of(self.grads, &self.layout, dtype).view(range.start, [range.len()]),
        };
        ranges.into_iter().map(range).collect()
    }
}
