//! The places of parameters in the flat buffers. They lie in buckets. A bucket is reduced at once, and divided over the
//! ranks that share the optimizer's state.

use std::cmp::Reverse;

use device::DType;
use parallel::{Axes, Place, Ranks};

use super::owned_range::OwnedRange;
use super::owners::{Belonging, owners};
use super::sharding::{Division, Sharding};
use super::spec::{ParamSpec, TiedCopy};
use super::weight_memory::{ParamMemory, WeightMemory};

/// The first elements of parameters lie at multiples of this: 256 bytes of f32, 128 of bf16.
pub(crate) const ALIGNMENT: usize = 64;

/// A range of the flat buffers. Its gradients are complete, and are reduced, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The first layer with parameters in the bucket. That layer's backward completes the bucket, and its forward is
    /// the first to read it.
    pub layer: usize,
    /// The first element of the bucket's whole gradient among the gradients of one type. If ranks divide gradients it
    /// is in a buffer that layers take turns in.
    pub start: usize,
    /// The first element of the gradient that this rank keeps, there too.
    pub part_start: usize,
    /// The number of the bucket's elements, with the padding that makes the ranks' parts equal and aligned.
    pub elements: usize,
    /// The memory of the bucket's weights, and the ranks that divide the weights' masters and state.
    pub home: ParamMemory,
    /// The place of this rank among the ranks that divide the bucket.
    pub place: Place,
    /// The rank that updates the whole bucket, among the ranks that divide the bucket; `None` if each rank updates a part.
    pub owner: Option<usize>,
    /// The elements of the bucket that this rank updates.
    pub owned: OwnedRange,
    /// The bucket's first element in the weights of that memory.
    pub weights_start: usize,
    /// The first element that this rank updates, among all elements that the rank updates in that memory.
    pub owned_start: usize,
    /// The ranks over which the bucket's gradients are summed: those that have other tokens.
    pub sums: Axes,
    /// The bucket's place in the buffers that layers take turns in: for [`WeightMemory::Gathered`] of the whole
    /// weights, and if ranks divide gradients of whole gradients.
    pub turn: Turn,
    /// The kind of tied copy, if the bucket has one parameter of which another stage has a copy.
    pub tied: Option<TiedCopy>,
    /// Whether a step gathers the bucket's weights before the first use of the weights.
    pub is_gathered: bool,
}

/// A place in one of the buffers that layers take turns in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The buffer.
    pub buffer: usize,
    /// The first element in the buffer.
    pub start: usize,
}

/// The place of one parameter, in elements.
#[derive(Clone, Copy, Debug)]
pub struct ParamOffsets {
    /// The memory of the parameter's weights, and the ranks that divide the parameter's masters and state.
    pub home: ParamMemory,
    /// The place among the gradients of the same type; `None` if the parameter is frozen.
    pub grad: Option<usize>,
    /// The place among all parameters of the same memory.
    pub flat: usize,
    /// For [`WeightMemory::Gathered`]: in the buffers that layers take turns in.
    pub turn: Turn,
    /// The elements that are updated here.
    pub owned: OwnedRange,
    /// The first owned element in the master weights of the parameter's memory.
    pub master: usize,
    /// The first gradient of owned elements, among the owned gradients of the same type.
    pub owned_grad: usize,
    /// Whether a step gathers the elements of other ranks before the first use of the parameter.
    pub is_gathered: bool,
}

/// The number of buffers that blocks take turns in: one is filled while the one before is read.
pub(crate) const TURNS: usize = 2;

/// The number of buffers that embedding and head take turns in: all blocks run between the two.
pub(crate) const TURNS_OF_ENDS: usize = 1;

/// The flat layout of parameters.
#[derive(Clone, Debug)]
pub struct FlatLayout {
    /// The place of each parameter.
    pub params: Vec<ParamOffsets>,
    /// The buckets in the order of completion in backward: from the last layer to the first.
    pub buckets: Vec<Bucket>,
    /// The buckets of frozen parameters that ranks divide. They have no gradients.
    pub frozen: Vec<Bucket>,
    /// Elements of all parameters with gradients in f32, with padding.
    pub f32_gradients: usize,
    /// Elements of all parameters with gradients in bf16, with padding.
    pub bf16_gradients: usize,
    /// Elements of all parameters by the memory of the parameters' weights, with padding.
    pub by_home: Vec<HomeSize>,
}

/// The elements of all parameters of one memory, with padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeSize {
    /// The memory.
    pub home: ParamMemory,
    /// All elements.
    pub elements: usize,
    /// The elements that this rank updates.
    pub owned: usize,
}

impl FlatLayout {
    /// Lays out parameters that are declared in layer order, in buckets of at least `bucket_bytes` of f32. The weights of a
    /// bucket have one memory, and its gradients are summed over the same ranks. Parameters with the same memory are
    /// neighbours, in order of declaration. Frozen parameters that are whole are in no bucket.
    pub fn new(specs: &[ParamSpec], bucket_bytes: usize, ranks: &Ranks) -> FlatLayout {
        let mut layout = FlatLayout {
            params: vec![],
            buckets: vec![],
            frozen: vec![],
            f32_gradients: 0,
            bf16_gradients: 0,
            by_home: vec![],
        };
        let homes: Vec<ParamMemory> = specs.iter().map(|spec| ParamMemory::of(spec, ranks)).collect();
        for home in &homes {
            if !layout.by_home.iter().any(|known| known.home == *home) {
                layout.by_home.push(HomeSize { home: *home, elements: 0, owned: 0 });
            }
        }
        let owners = owners_of(specs, &homes, ranks);
        let mut places = vec![None; specs.len()];
        for kind in 0..layout.by_home.len() {
            let home = layout.by_home[kind].home;
            let place = ranks.place(home.rest);
            let members: Vec<usize> = (0..specs.len()).filter(|index| homes[*index] == home).collect();
            if let WeightMemory::Frozen(_) = home.memory {
                members.iter().for_each(|&index| places[index] = Some(layout.add_frozen(kind, &specs[index])));
                continue;
            }
            let by_layer = home.sharding >= Sharding::Gradients;
            let (is_frozen, divides_gradients) = (home.memory.is_frozen(), by_layer && !home.memory.is_frozen());
            let buckets = match home.division {
                Division::Elements => buckets_of(specs, &members, if by_layer { 0 } else { bucket_bytes }, ranks),
                Division::Parameters => members.chunks(1).collect(),
            };
            let owner = |bucket: &[usize]| owners[bucket[0]];
            let layers: Vec<BucketSize> =
                buckets.iter().map(|of| BucketSize::of(specs, of, place, owner(of))).collect();
            let turns = turns(&layers, home.turns);
            let kept: usize = layers.iter().map(|of| of.owned.elements).sum();
            let in_turns = turns.iter().zip(&layers).map(|(turn, of)| turn.start + of.elements).max().unwrap_or(0);
            let first = *layout.end(home.grads);
            let mut kept_end = first;
            for ((bucket, turn), BucketSize { layer, elements, owned }) in buckets.into_iter().zip(turns).zip(layers) {
                let start = match divides_gradients {
                    true => first + kept + turn.buffer * in_turns + turn.start,
                    false => *layout.end(home.grads),
                };
                if !divides_gradients && !is_frozen {
                    *layout.end(home.grads) += elements;
                }
                let HomeSize { elements: weights_start, owned: owned_start, .. } = layout.by_home[kind];
                let made = Bucket {
                    is_gathered: place.has_others(),
                    layer,
                    tied: specs[bucket[0]].tied,
                    sums: specs[bucket[0]].spread.sums(ranks),
                    home,
                    place,
                    owner: owner(bucket),
                    owned,
                    turn,
                    start,
                    part_start: if divides_gradients { kept_end } else { start + owned.first },
                    elements,
                    weights_start,
                    owned_start,
                };
                layout.add_bucket(specs, bucket, made, &mut places);
                layout.by_home[kind].elements += elements;
                layout.by_home[kind].owned += owned.elements;
                kept_end += owned.elements;
            }
            if divides_gradients {
                *layout.end(home.grads) = first + kept + home.turns * in_turns;
            }
        }
        layout.params = places.into_iter().flatten().collect();
        layout.buckets.reverse();
        layout.buckets.sort_by_key(|bucket| Reverse(bucket.layer));
        layout
    }

    /// The end of the gradients of a type.
    fn end(&mut self, grads: DType) -> &mut usize {
        if grads == DType::Bf16 { &mut self.bf16_gradients } else { &mut self.f32_gradients }
    }

    fn add_frozen(&mut self, kind: usize, spec: &ParamSpec) -> ParamOffsets {
        let HomeSize { home, elements: end, .. } = &mut self.by_home[kind];
        let flat = *end;
        *end += aligned_elements(spec);
        let (turn, owned) = (Turn::default(), OwnedRange::default());
        ParamOffsets { home: *home, grad: None, flat, turn, owned, master: 0, owned_grad: 0, is_gathered: false }
    }

    /// Adds a bucket with the places of the bucket's members.
    fn add_bucket(
        &mut self,
        specs: &[ParamSpec],
        members: &[usize],
        bucket: Bucket,
        places: &mut [Option<ParamOffsets>],
    ) {
        let mut at = 0;
        for &index in members {
            places[index] = Some(bucket.offsets_of(at, specs[index].shape.elements()));
            at += aligned_elements(&specs[index]);
        }
        if bucket.home.memory.is_frozen() { self.frozen.push(bucket) } else { self.buckets.push(bucket) }
    }
}

impl Bucket {
    /// Whether a parameter there is a member.
    pub(super) fn has(&self, place: &ParamOffsets) -> bool {
        let flat = self.weights_start..self.weights_start + self.elements;
        place.home == self.home && flat.contains(&place.flat)
    }

    /// The offsets of a parameter that begins at the element `at` of the bucket.
    fn offsets_of(&self, at: usize, elements: usize) -> ParamOffsets {
        let own = self.owned.range();
        let (first, end) = (at.max(own.start), (at + elements).min(own.end));
        let place = ParamOffsets {
            home: self.home,
            grad: (!self.home.memory.is_frozen()).then_some(self.start + at),
            flat: self.weights_start + at,
            turn: Turn { start: self.turn.start + at, ..self.turn },
            owned: OwnedRange::default(),
            master: 0,
            owned_grad: 0,
            is_gathered: self.is_gathered,
        };
        if first >= end {
            return place;
        }
        let in_part = first - own.start;
        ParamOffsets {
            owned: OwnedRange { first: first - at, elements: end - first },
            master: self.owned_start + in_part,
            owned_grad: self.part_start + in_part,
            ..place
        }
    }
}

/// A bucket's layer, and the bucket's elements with padding.
struct BucketSize {
    layer: usize,
    elements: usize,
    /// The elements that this rank updates.
    owned: OwnedRange,
}

impl BucketSize {
    /// The size of a bucket with `members`, on a rank at `place`. It belongs to `owner`, or each rank has a
    /// part.
    fn of(specs: &[ParamSpec], members: &[usize], place: Place, owner: Option<usize>) -> BucketSize {
        let elements: usize = members.iter().map(|&index| aligned_elements(&specs[index])).sum();
        let elements = elements.next_multiple_of(ALIGNMENT * owner.map_or(place.count, |_| 1));
        BucketSize { layer: specs[members[0]].layer, elements, owned: OwnedRange::of(elements, place, owner) }
    }
}

/// The ranks that parameters belong to, by parameter; `None` for parameters that ranks cut.
fn owners_of(specs: &[ParamSpec], homes: &[ParamMemory], ranks: &Ranks) -> Vec<Option<usize>> {
    let whole: Vec<usize> = (0..specs.len()).filter(|&of| homes[of].division == Division::Parameters).collect();
    let belonging = |&of: &usize| Belonging { elements: aligned_elements(&specs[of]), over: homes[of].rest };
    let mut owners_of = vec![None; specs.len()];
    let owners = owners(&whole.iter().map(belonging).collect::<Vec<_>>(), ranks);
    whole.into_iter().zip(owners).for_each(|(of, owner)| owners_of[of] = Some(owner));
    owners_of
}

/// The places of buckets in so many buffers that layers take turns in. A layer's buckets are neighbours in one buffer.
fn turns(buckets: &[BucketSize], buffers: usize) -> Vec<Turn> {
    let (mut number, mut end) = (0, 0);
    let mut turns = Vec::with_capacity(buckets.len());
    for (at, BucketSize { layer, elements, .. }) in buckets.iter().enumerate() {
        if at > 0 && buckets[at - 1].layer != *layer {
            (number, end) = (number + 1, 0);
        }
        turns.push(Turn { buffer: number % buffers, start: end });
        end += elements;
    }
    turns
}

/// The parameters of each bucket, of `members` in order of declaration. Layer 0 has a bucket of its own: with tied
/// embeddings its backward is the last to write the table. A tied parameter is alone in its bucket. A bucket never has
/// layers from both sides of another stage's layers: their backwards are far apart in time.
fn buckets_of<'m>(specs: &[ParamSpec], members: &'m [usize], bucket_bytes: usize, ranks: &Ranks) -> Vec<&'m [usize]> {
    let mut buckets = Vec::new();
    let (mut bytes, mut end) = (0, members.len());
    for (at, &index) in members.iter().enumerate().rev() {
        let spec = &specs[index];
        bytes += aligned_elements(spec) * DType::F32.size();
        let begins = match at.checked_sub(1).map(|before| &specs[members[before]]) {
            None => true,
            Some(before) if before.tied != spec.tied || before.spread.sums(ranks) != spec.spread.sums(ranks) => true,
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
    use std::rc::Rc;

    use parallel::{Axis, Connections, Mesh, MeshSizes, Placement};

    use super::*;
    use crate::fp8::Fp8;
    use crate::params::Init;

    /// One of some data-parallel ranks.
    fn data_rank(rank: usize, ranks: usize) -> Rc<Ranks> {
        let mesh = Mesh::new(MeshSizes::of(ranks)).unwrap();
        let connections = Connections { groups: Vec::new(), ..Connections::new(mesh, Placement::new(1, 1)) };
        Ranks::connect(&connections, rank, &mut |_, _| Ok(None)).unwrap()
    }

    /// The layout on a rank of some that divide the optimizer's state.
    fn divided(specs: &[ParamSpec], bucket_bytes: usize, rank: usize, ranks: usize) -> FlatLayout {
        let here = data_rank(rank, ranks);
        let specs: Vec<_> = specs.iter().map(|spec| spec.clone().resting(&here, here.axes(Axis::Data))).collect();
        FlatLayout::new(&specs, bucket_bytes, &here)
    }

    /// Parameters of so many elements by layer.
    fn specs(layers: &[(usize, &[usize])]) -> Vec<ParamSpec> {
        let spec = |layer: usize, elements: usize| ParamSpec::new("p", [elements], Init::Constant(0.0), layer);
        layers.iter().flat_map(|(layer, all)| all.iter().map(|&elements| spec(*layer, elements))).collect()
    }

    #[test]
    fn every_element_of_every_parameter_is_owned_by_one_rank_and_has_one_place() {
        let mut specs = specs(&[(0, &[1000]), (1, &[7, 300, 64]), (2, &[63, 65]), (4, &[1, 2, 5000])]);
        let all = [
            (false, Sharding::State, Division::Elements),
            (true, Sharding::State, Division::Elements),
            (true, Sharding::Weights, Division::Elements),
            (true, Sharding::State, Division::Parameters),
            (true, Sharding::Weights, Division::Parameters),
        ];
        for (mixed, sharding, division) in all {
            if mixed {
                [1, 2, 5].into_iter().for_each(|index| specs[index].dtype = DType::Bf16);
            }
            [1, 3, 4, 8].into_iter().for_each(|index| specs[index].division = division);
            specs.iter_mut().skip(1).for_each(|spec| spec.sharding = sharding);
            for (ranks, bucket_bytes) in [1, 2, 3, 8].into_iter().flat_map(|r| [0, 1500, usize::MAX].map(|b| (r, b))) {
                let mut owners: Vec<Vec<usize>> = specs.iter().map(|spec| vec![0; spec.shape.elements()]).collect();
                for rank in 0..ranks {
                    let layout = divided(&specs, bucket_bytes, rank, ranks);
                    let mut gradients = vec![0; layout.f32_gradients];
                    let counts = |of: fn(&HomeSize) -> usize| -> Vec<_> {
                        layout.by_home.iter().map(|size| (size.home, vec![0; of(size)])).collect()
                    };
                    let (mut weights, mut masters) = (counts(|of| of.elements), counts(|of| of.owned));
                    for (place, owners) in layout.params.iter().zip(&mut owners) {
                        let count = |all: &mut [(ParamMemory, Vec<usize>)], at: usize, elements: usize| {
                            let (_, all) = all.iter_mut().find(|(home, _)| *home == place.home).unwrap();
                            all[at..][..elements].iter_mut().for_each(|count| *count += 1);
                        };
                        let OwnedRange { first, elements } = place.owned;
                        owners[first..][..elements].iter_mut().for_each(|count| *count += 1);
                        count(&mut weights, place.flat, owners.len());
                        count(&mut masters, place.master, elements);
                        gradients[place.owned_grad..][..elements].iter_mut().for_each(|count| *count += 1);
                        let aligned = [place.master, first, place.flat, place.owned_grad]
                            .iter()
                            .all(|at| at.is_multiple_of(ALIGNMENT));
                        assert!(aligned, "{place:?}");
                    }
                    let once = |(_, all): &(ParamMemory, Vec<usize>)| all.iter().all(|&count| count <= 1);
                    assert!(gradients.iter().all(|&count| count <= 1), "two gradients lie in one place");
                    assert!(weights.iter().chain(&masters).all(once), "two elements lie in one place");
                }
                assert!(owners.iter().flatten().all(|&count| count == 1), "{ranks} ranks, {bucket_bytes} bytes");
            }
        }
    }

    #[test]
    fn buckets_cover_everything_without_gap_from_the_last_layer_to_the_first() {
        let specs = specs(&[(0, &[100]), (1, &[100, 100]), (2, &[100]), (3, &[100])]);
        let layout = divided(&specs, 1024, 1, 4);
        let layers: Vec<usize> = layout.buckets.iter().map(|bucket| bucket.layer).collect();
        assert_eq!(layers, [2, 1, 0]);
        let mut end = layout.f32_gradients;
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
            let layout = divided(specs, usize::MAX, 0, 2);
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
        let layout = FlatLayout::new(&specs, 0, &Ranks::alone());
        let buckets: Vec<_> = layout.buckets.iter().map(|b| (b.layer, b.home.memory, b.weights_start)).collect();
        let (f32, bf16) = (WeightMemory::Kept(DType::F32), WeightMemory::Kept(DType::Bf16));
        assert_eq!(buckets, [(2, f32, 128), (2, bf16, 128), (1, f32, 0), (1, bf16, 0)]);
        let by_memory: Vec<_> = layout.by_home.iter().map(|of| (of.home.memory, of.elements)).collect();
        assert_eq!(by_memory, [(bf16, 256), (f32, 256)]);
    }

    #[test]
    fn gathered_weights_take_turns_in_two_buffers() {
        let mut specs = specs(&[(3, &[1000, 10]), (4, &[1000, 10]), (5, &[1000, 10]), (6, &[1000, 10])]);
        for spec in &mut specs {
            spec.dtype = DType::Bf16;
            spec.fp8 = (spec.shape.elements() == 1000).then(Fp8::default);
        }
        let (kept, gathered) = (WeightMemory::Kept(DType::Bf16), WeightMemory::Gathered(DType::Bf16));
        let divided = divided(&specs, 1000, 1, 2);
        let buckets: Vec<_> = divided.buckets.iter().map(|b| (b.layer, b.home.memory, b.elements)).collect();
        let all = [(6, gathered, 1024), (5, gathered, 1024), (4, gathered, 1024), (3, kept, 256), (3, gathered, 1024)];
        assert_eq!(buckets, all);
        let turns: Vec<_> = [0, 2, 4, 6].map(|index| divided.params[index].turn).into();
        assert_eq!(turns, [0, 1, 0, 1].map(|buffer| Turn { buffer, start: 0 }));
        let whole = FlatLayout::new(&specs, 1000, &Ranks::alone());
        let masters = WeightMemory::Kept(DType::F32);
        assert!(whole.params.iter().step_by(2).all(|place| place.home.memory == masters), "{:?}", whole.params);
    }

    #[test]
    fn divided_gradients_have_two_buffers_for_whole_layers_and_parts_of_all() {
        let mut specs = specs(&[(0, &[256]), (1, &[100, 300]), (2, &[100]), (3, &[100]), (4, &[128])]);
        specs[1..5].iter_mut().for_each(|spec| spec.sharding = Sharding::Gradients);
        for rank in 0..2 {
            let layout = divided(&specs, usize::MAX, rank, 2);
            // Whole ones of 256 and 128 elements; parts of 256, 64 and 64; two buffers of 512.
            assert_eq!(layout.f32_gradients, 384 + 384 + 1024);
            let of = |layer: usize| *layout.buckets.iter().find(|bucket| bucket.layer == layer).unwrap();
            let places = [1, 2, 3].map(|layer| (of(layer).start, of(layer).part_start));
            assert_eq!(places, [(768, 384), (1280, 640), (768, 704)]);
            // Of the 512 elements of layer 1, those of its second parameter from 128 on.
            let place = layout.params[2];
            let owned = [OwnedRange { first: 0, elements: 128 }, OwnedRange { first: 128, elements: 172 }][rank];
            assert_eq!((place.grad, place.owned, place.owned_grad), (Some(896), owned, [512, 384][rank]));
        }
    }
}
