//! The places of parameters in the flat buffers. They lie in buckets. A bucket is reduced at once, and divided over the
//! ranks that share the optimizer's state.

use std::cmp::Reverse;
use std::ops::Range;

use device::{DType, Tensor};

use super::spec::{ParamSpec, TiedCopy};
use super::weight_memory::WeightMemory;

/// The first elements of parameters lie at multiples of this: 256 bytes of f32, 128 of bf16.
pub(crate) const ALIGNMENT: usize = 64;

/// The part of every bucket that a rank updates: it has master weights and optimizer state of this part only. With a
/// distributed optimizer (ZeRO stage 1, Rajbhandari et al., 2020) the data-parallel ranks have equal parts. Otherwise every
/// rank has the whole bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimizerShard {
    /// The index of the part.
    pub rank: usize,
    /// The number of parts.
    pub ranks: usize,
}

impl OptimizerShard {
    /// All of every bucket.
    pub fn whole() -> OptimizerShard {
        OptimizerShard { rank: 0, ranks: 1 }
    }

    /// Whether other ranks have other parts.
    pub fn is_part(self) -> bool {
        self.ranks > 1
    }

    /// This rank's part of a tensor with a bucket's elements; flat.
    pub fn of(self, tensor: Tensor) -> Tensor {
        let part = tensor.elements() / self.ranks;
        tensor.view(self.rank * part, [part])
    }
}

/// A range of the flat buffers. Its gradients are complete, and are reduced, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The first layer with parameters in it. That layer's backward completes the bucket, and its forward is the first to
    /// read it.
    pub layer: usize,
    /// Its first element in `main_grad`.
    pub start: usize,
    /// The number of its elements, with the padding that makes the ranks' parts equal and aligned.
    pub elements: usize,
    /// The memory of its weights.
    pub memory: WeightMemory,
    /// Its first element in the weights of that memory.
    pub weights_start: usize,
    /// For [`WeightMemory::Passing`]: the buffer, of [`PASSING_BUFFERS`], that gathers the whole weights.
    pub buffer: usize,
    /// Set if the bucket has one parameter, and another stage has a copy of it.
    pub tied: Option<TiedCopy>,
}

/// The elements of a parameter that this rank updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedRange {
    /// The index of the first one within the parameter as it is stored here.
    pub first: usize,
    /// How many there are, possibly none.
    pub elements: usize,
}

impl OwnedRange {
    /// Their indices within the parameter as it is stored here.
    pub fn range(self) -> Range<usize> {
        self.first..self.first + self.elements
    }

    /// Those of them that lie in `range`.
    pub fn within(self, range: Range<usize>) -> Range<usize> {
        let owned = self.range();
        let start = owned.start.max(range.start);
        start..owned.end.min(range.end).max(start)
    }
}

/// The place of one parameter, in elements.
#[derive(Clone, Copy, Debug)]
pub struct ParamOffsets {
    /// The memory of its weights.
    pub memory: WeightMemory,
    /// In `main_grad`; `None` if it is frozen.
    pub grad: Option<usize>,
    /// In the weights of its memory. For [`WeightMemory::Passing`] in the buffer `buffer`.
    pub weight: usize,
    /// The buffer of its bucket.
    pub buffer: usize,
    /// The elements that are updated here.
    pub owned: OwnedRange,
    /// The first of these in the master weights of its memory.
    pub master: usize,
    /// A step gathers the elements of other ranks before its first use of them.
    pub is_gathered: bool,
}

/// The number of buffers that passing weights take turns in: one is gathered while the one before is read.
pub(crate) const PASSING_BUFFERS: usize = 2;

/// The flat layout of parameters.
#[derive(Clone, Debug)]
pub struct FlatLayout {
    /// The place of each parameter.
    pub params: Vec<ParamOffsets>,
    /// In the order backward completes them: from the last layer to the first.
    pub buckets: Vec<Bucket>,
    /// Elements of all parameters, with padding.
    pub total: usize,
    /// Elements of all parameters by the memory of their weights, with padding.
    pub by_memory: Vec<(WeightMemory, usize)>,
    /// The part of each bucket that is updated here.
    pub shard: OptimizerShard,
}

impl FlatLayout {
    /// Lays out parameters that are declared in layer order, in buckets of at least `bucket_bytes` of f32. The weights of a
    /// bucket have one memory. Parameters with the same memory are neighbours, in order of declaration. Frozen parameters are
    /// in no bucket.
    pub fn new(specs: &[ParamSpec], bucket_bytes: usize, shard: OptimizerShard) -> FlatLayout {
        let mut layout = FlatLayout { params: vec![], buckets: vec![], total: 0, by_memory: vec![], shard };
        let first_layer = specs.iter().map(|spec| spec.layer).min().unwrap_or(0);
        let memories: Vec<_> = specs.iter().map(|spec| WeightMemory::of(spec, first_layer, shard)).collect();
        for memory in &memories {
            if !layout.by_memory.iter().any(|(known, _)| known == memory) {
                layout.by_memory.push((*memory, 0));
            }
        }
        let mut places = vec![None; specs.len()];
        for kind in 0..layout.by_memory.len() {
            let members = |index: &usize| memories[*index] == layout.by_memory[kind].0;
            let members: Vec<usize> = (0..specs.len()).filter(members).collect();
            if let WeightMemory::Frozen(_) = layout.by_memory[kind].0 {
                members.iter().for_each(|&index| places[index] = Some(layout.add_frozen(kind, &specs[index])));
                continue;
            }
            for (number, bucket) in buckets_of(specs, &members, bucket_bytes).into_iter().enumerate() {
                // The first layer's bucket is gathered at the end of a step.
                let is_gathered = shard.is_part() && specs[bucket[0]].layer > first_layer;
                layout.add_bucket(specs, bucket, (kind, number % PASSING_BUFFERS, is_gathered), &mut places);
            }
        }
        layout.params = places.into_iter().flatten().collect();
        layout.buckets.reverse();
        layout.buckets.sort_by_key(|bucket| Reverse(bucket.layer));
        layout
    }

    fn add_frozen(&mut self, kind: usize, spec: &ParamSpec) -> ParamOffsets {
        let (memory, end) = &mut self.by_memory[kind];
        let weight = *end;
        // The ranks that share an optimizer have all of it, too.
        *end += aligned_elements(spec);
        let owned = OwnedRange::default();
        ParamOffsets { memory: *memory, grad: None, weight, buffer: 0, owned, master: 0, is_gathered: false }
    }

    fn add_bucket(
        &mut self,
        specs: &[ParamSpec],
        members: &[usize],
        (kind, buffer, is_gathered): (usize, usize, bool),
        places: &mut [Option<ParamOffsets>],
    ) {
        let ParamSpec { layer, tied, .. } = specs[members[0]];
        let elements: usize = members.iter().map(|&index| aligned_elements(&specs[index])).sum();
        let elements = elements.next_multiple_of(ALIGNMENT * self.shard.ranks);
        let (memory, end) = &mut self.by_memory[kind];
        let bucket = Bucket { layer, start: self.total, elements, memory: *memory, weights_start: *end, buffer, tied };
        *end += elements;
        self.total += elements;
        let mut grad = bucket.start;
        for &index in members {
            let place = bucket.offsets_of(grad, specs[index].shape.elements(), self.shard);
            places[index] = Some(ParamOffsets { is_gathered, ..place });
            grad += aligned_elements(&specs[index]);
        }
        self.buckets.push(bucket);
    }
}

impl Bucket {
    /// The offsets of a parameter that begins at `grad` in `main_grad`.
    fn offsets_of(&self, grad: usize, elements: usize, shard: OptimizerShard) -> ParamOffsets {
        let part = self.elements / shard.ranks;
        let part_start = self.start + shard.rank * part;
        let (first, end) = (grad.max(part_start), (grad + elements).min(part_start + part));
        let weight = match self.memory {
            WeightMemory::Kept(_) => self.weights_start + grad - self.start,
            WeightMemory::Passing(_) | WeightMemory::Frozen(_) => grad - self.start,
        };
        let place = ParamOffsets {
            memory: self.memory,
            grad: Some(grad),
            weight,
            buffer: self.buffer,
            owned: OwnedRange::default(),
            master: 0,
            is_gathered: false,
        };
        if first >= end {
            return place;
        }
        let owned = OwnedRange { first: first - grad, elements: end - first };
        // This rank's parts of the earlier buckets come first.
        let master = self.weights_start / shard.ranks + first - part_start;
        ParamOffsets { owned, master, ..place }
    }
}

/// The parameters of each bucket, of `members` in order of declaration. Layer 0 has a bucket of its own: with tied
/// embeddings its backward is the last to write the table. A tied parameter is alone in its bucket. A bucket never has
/// layers from both sides of another stage's layers: their backwards are far apart in time.
fn buckets_of<'m>(specs: &[ParamSpec], members: &'m [usize], bucket_bytes: usize) -> Vec<&'m [usize]> {
    let mut buckets = Vec::new();
    let (mut bytes, mut end) = (0, members.len());
    for (at, &index) in members.iter().enumerate().rev() {
        let spec = &specs[index];
        bytes += aligned_elements(spec) * DType::F32.size();
        let begins = match at.checked_sub(1).map(|before| &specs[members[before]]) {
            None => true,
            Some(before) if before.tied != spec.tied => true,
            Some(before) if before.layer == spec.layer => false,
            Some(before) => bytes >= bucket_bytes || before.layer == 0 || before.layer + 1 < spec.layer,
        };
        if begins {
            buckets.push(&members[at..end]);
            (bytes, end) = (0, at);
        }
    }
    buckets.reverse();
    buckets
}

fn aligned_elements(spec: &ParamSpec) -> usize {
    spec.shape.elements().next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fp8::Fp8;
    use crate::params::Init;

    /// Parameters of so many elements by layer.
    fn specs(layers: &[(usize, &[usize])]) -> Vec<ParamSpec> {
        let spec = |layer: usize, elements: usize| ParamSpec::new("p", [elements], Init::Constant(0.0), layer);
        layers.iter().flat_map(|(layer, all)| all.iter().map(|&elements| spec(*layer, elements))).collect()
    }

    #[test]
    fn every_element_of_every_parameter_is_owned_by_one_rank_and_has_one_place() {
        let mut specs = specs(&[(0, &[1000]), (1, &[7, 300, 64]), (2, &[63, 65]), (4, &[1, 2, 5000])]);
        for mixed in [false, true] {
            if mixed {
                [1, 2, 5].into_iter().for_each(|index| specs[index].dtype = DType::Bf16);
            }
            for (ranks, bucket_bytes) in [1, 2, 3, 8].into_iter().flat_map(|r| [0, 1500, usize::MAX].map(|b| (r, b))) {
                let mut owners: Vec<Vec<usize>> = specs.iter().map(|spec| vec![0; spec.shape.elements()]).collect();
                for rank in 0..ranks {
                    let layout = FlatLayout::new(&specs, bucket_bytes, OptimizerShard { rank, ranks });
                    let mut weights: Vec<_> = layout.by_memory.iter().map(|(m, all)| (*m, vec![0; *all])).collect();
                    let mut masters = weights.clone();
                    masters.iter_mut().for_each(|(_, all)| all.truncate(all.len() / ranks));
                    for (place, owners) in layout.params.iter().zip(&mut owners) {
                        let count = |all: &mut [(WeightMemory, Vec<usize>)], at: usize, elements: usize| {
                            let (_, all) = all.iter_mut().find(|(memory, _)| *memory == place.memory).unwrap();
                            all[at..][..elements].iter_mut().for_each(|count| *count += 1);
                        };
                        let OwnedRange { first, elements } = place.owned;
                        owners[first..][..elements].iter_mut().for_each(|count| *count += 1);
                        count(&mut weights, place.weight, owners.len());
                        count(&mut masters, place.master, elements);
                        let aligned = [place.master, first, place.weight].iter().all(|at| at.is_multiple_of(ALIGNMENT));
                        assert!(aligned, "{place:?}");
                    }
                    let once = |(_, all): &(WeightMemory, Vec<usize>)| all.iter().all(|&count| count <= 1);
                    assert!(weights.iter().chain(&masters).all(once), "two elements lie in one place");
                }
                assert!(owners.iter().flatten().all(|&count| count == 1), "{ranks} ranks, {bucket_bytes} bytes");
            }
        }
    }

    #[test]
    fn buckets_cover_everything_without_gap_from_the_last_layer_to_the_first() {
        let specs = specs(&[(0, &[100]), (1, &[100, 100]), (2, &[100]), (3, &[100])]);
        let layout = FlatLayout::new(&specs, 1024, OptimizerShard { rank: 1, ranks: 4 });
        let layers: Vec<usize> = layout.buckets.iter().map(|bucket| bucket.layer).collect();
        assert_eq!(layers, [2, 1, 0]);
        let mut end = layout.total;
        for bucket in &layout.buckets {
            assert_eq!(bucket.start + bucket.elements, end);
            assert!(bucket.elements.is_multiple_of(4 * ALIGNMENT));
            end = bucket.start;
        }
        assert_eq!(end, 0);
    }

    #[test]
    fn a_tied_parameter_is_alone_in_its_bucket_and_no_bucket_spans_layers_of_other_stages() {
        let mut first = specs(&[(0, &[100, 30]), (1, &[100]), (2, &[100]), (5, &[100]), (6, &[100])]);
        first[0].tied = Some(TiedCopy::Primary);
        let mut last = specs(&[(3, &[100]), (4, &[100]), (7, &[100]), (8, &[10, 100])]);
        last[4].tied = Some(TiedCopy::Replica);
        let buckets = |specs: &[ParamSpec]| {
            let layout = FlatLayout::new(specs, usize::MAX, OptimizerShard { rank: 0, ranks: 2 });
            layout.buckets.iter().map(|b| (b.layer, b.elements, b.tied)).collect::<Vec<_>>()
        };
        let (primary, replica) = (Some(TiedCopy::Primary), Some(TiedCopy::Replica));
        assert_eq!(buckets(&first), [(5, 256, None), (1, 256, None), (0, 128, None), (0, 128, primary)]);
        assert_eq!(buckets(&last), [(8, 128, replica), (7, 256, None), (3, 256, None)]);
    }

    #[test]
    fn the_weights_of_a_bucket_have_one_memory() {
        let mut specs = specs(&[(1, &[100, 100]), (2, &[100, 100])]);
        [0, 2].into_iter().for_each(|index| specs[index].dtype = DType::Bf16);
        let layout = FlatLayout::new(&specs, 0, OptimizerShard::whole());
        let buckets: Vec<_> = layout.buckets.iter().map(|b| (b.layer, b.memory, b.weights_start)).collect();
        let (f32, bf16) = (WeightMemory::Kept(DType::F32), WeightMemory::Kept(DType::Bf16));
        assert_eq!(buckets, [(2, f32, 128), (2, bf16, 128), (1, f32, 0), (1, bf16, 0)]);
        assert_eq!(layout.by_memory, [(bf16, 256), (f32, 256)]);
    }

    #[test]
    fn passing_weights_take_turns_in_two_buffers_and_those_of_the_first_layer_stay() {
        let mut specs = specs(&[(3, &[1000, 10]), (4, &[1000, 10]), (5, &[1000, 10]), (6, &[1000, 10])]);
        for spec in &mut specs {
            spec.dtype = DType::Bf16;
            spec.fp8 = (spec.shape.elements() == 1000).then(Fp8::default);
        }
        let (kept, passing) = (WeightMemory::Kept(DType::Bf16), WeightMemory::Passing(DType::Bf16));
        let divided = FlatLayout::new(&specs, 1000, OptimizerShard { rank: 1, ranks: 2 });
        let buckets: Vec<_> = divided.buckets.iter().map(|b| (b.layer, b.memory, b.elements)).collect();
        let all = [(6, passing, 1024), (5, passing, 1024), (4, passing, 1024), (3, kept, 1280)];
        assert_eq!(buckets, all);
        let places: Vec<_> = [2, 4, 6].map(|index| (divided.params[index].buffer, divided.params[index].weight)).into();
        assert_eq!(places, [(0, 0), (1, 0), (0, 0)]);
        let whole = FlatLayout::new(&specs, 1000, OptimizerShard::whole());
        let masters = WeightMemory::Kept(DType::F32);
        assert!(whole.params.iter().step_by(2).all(|place| place.memory == masters), "{:?}", whole.params);
    }
}
