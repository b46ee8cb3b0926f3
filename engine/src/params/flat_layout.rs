//! Where parameters lie in the flat buffers: in buckets that are reduced at once, each divided over the ranks that share
//! the optimizer's state.

use device::{DType, Tensor};

use super::spec::{ParamSpec, TiedCopy};

/// The first elements of parameters lie at multiples of this: 256 bytes of f32, 128 of bf16.
pub(crate) const ALIGNMENT: usize = 64;

/// The part of every bucket that a rank updates: it has master weights and optimizer state of this part only. With a
/// distributed optimizer (ZeRO stage 1, Rajbhandari et al., 2020) the data-parallel ranks have equal parts. Otherwise every
/// rank has the whole bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimizerShard {
    /// Which part.
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
    /// The type of its weights.
    pub dtype: DType,
    /// Its first element in the weights of that type.
    pub weights_start: usize,
    /// Set where the bucket has one parameter, of which another stage has a copy.
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

/// Where one parameter lies, in elements.
#[derive(Clone, Copy, Debug)]
pub struct ParamOffsets {
    /// In `main_grad`.
    pub grad: usize,
    /// In the weights of its type.
    pub weight: usize,
    /// The elements that are updated here.
    pub owned: OwnedRange,
    /// Where these lie in the master weights of its type.
    pub master: usize,
}

/// The flat layout of parameters, in order of declaration.
#[derive(Clone, Debug)]
pub struct FlatLayout {
    /// Where each parameter lies.
    pub params: Vec<ParamOffsets>,
    /// In the order backward completes them: from the last layer to the first.
    pub buckets: Vec<Bucket>,
    /// Elements of all parameters, with padding.
    pub total: usize,
    /// Elements of all parameters by the type of their weights, with padding.
    pub by_dtype: Vec<(DType, usize)>,
    /// Which part of each bucket is updated here.
    pub shard: OptimizerShard,
}

impl FlatLayout {
    /// Lays out parameters that are declared in layer order, in buckets of at least `bucket_bytes` of f32.
    pub fn new(specs: &[ParamSpec], bucket_bytes: usize, shard: OptimizerShard) -> FlatLayout {
        let mut layout = FlatLayout { params: vec![], buckets: vec![], total: 0, by_dtype: vec![], shard };
        let firsts = first_of_buckets(specs, bucket_bytes);
        for (number, &first) in firsts.iter().enumerate() {
            let end = firsts.get(number + 1).copied().unwrap_or(specs.len());
            layout.add_bucket(&specs[first..end]);
        }
        layout.buckets.reverse();
        layout
    }

    fn add_bucket(&mut self, specs: &[ParamSpec]) {
        let ParamSpec { layer, dtype, tied, .. } = specs[0];
        let elements: usize = specs.iter().map(aligned_elements).sum();
        let elements = elements.next_multiple_of(ALIGNMENT * self.shard.ranks);
        if !self.by_dtype.iter().any(|(known, _)| *known == dtype) {
            self.by_dtype.push((dtype, 0));
        }
        let mut bucket = Bucket { layer, start: self.total, elements, dtype, weights_start: 0, tied };
        self.total += elements;
        for (_, end) in self.by_dtype.iter_mut().filter(|(known, _)| *known == dtype) {
            bucket.weights_start = *end;
            *end += elements;
        }
        let mut grad = bucket.start;
        for spec in specs {
            self.params.push(bucket.place(grad, spec.shape.elements(), self.shard));
            grad += aligned_elements(spec);
        }
        self.buckets.push(bucket);
    }
}

impl Bucket {
    /// Where a parameter lies that begins at `grad` in `main_grad`.
    fn place(&self, grad: usize, elements: usize, shard: OptimizerShard) -> ParamOffsets {
        let part = self.elements / shard.ranks;
        let part_start = self.start + shard.rank * part;
        let (first, end) = (grad.max(part_start), (grad + elements).min(part_start + part));
        let weight = self.weights_start + grad - self.start;
        if first >= end {
            return ParamOffsets { grad, weight, owned: OwnedRange::default(), master: 0 };
        }
        let owned = OwnedRange { first: first - grad, elements: end - first };
        // This rank's parts of the earlier buckets come first.
        let master = self.weights_start / shard.ranks + first - part_start;
        ParamOffsets { grad, weight, owned, master }
    }
}

/// The indices of the parameters that begin a bucket. Layer 0 has a bucket of its own: with tied embeddings its backward is
/// the last to write the table. A tied parameter is alone in its bucket. The weights of a bucket have one type. A bucket
/// never has layers from both sides of another stage's layers: their backwards are far apart in time.
fn first_of_buckets(specs: &[ParamSpec], bucket_bytes: usize) -> Vec<usize> {
    let mut firsts = Vec::new();
    let mut bytes = 0;
    for (index, spec) in specs.iter().enumerate().rev() {
        bytes += aligned_elements(spec) * DType::F32.size();
        let begins = match index.checked_sub(1).map(|before| &specs[before]) {
            None => true,
            Some(before) if before.tied != spec.tied || before.dtype != spec.dtype => true,
            Some(before) if before.layer == spec.layer => false,
            Some(before) => bytes >= bucket_bytes || before.layer == 0 || before.layer + 1 < spec.layer,
        };
        if begins {
            firsts.push(index);
            bytes = 0;
        }
    }
    firsts.reverse();
    firsts
}

fn aligned_elements(spec: &ParamSpec) -> usize {
    spec.shape.elements().next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
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
                    let mut weights: Vec<_> = layout.by_dtype.iter().map(|(d, all)| (*d, vec![0; *all])).collect();
                    let mut masters = weights.clone();
                    masters.iter_mut().for_each(|(_, all)| all.truncate(all.len() / ranks));
                    for ((place, owners), spec) in layout.params.iter().zip(&mut owners).zip(&specs) {
                        let of_type = |all: &mut [(DType, Vec<usize>)], at: usize, elements: usize| {
                            let (_, all) = all.iter_mut().find(|(dtype, _)| *dtype == spec.dtype).unwrap();
                            all[at..][..elements].iter_mut().for_each(|count| *count += 1);
                        };
                        let OwnedRange { first, elements } = place.owned;
                        owners[first..][..elements].iter_mut().for_each(|count| *count += 1);
                        of_type(&mut weights, place.weight, owners.len());
                        of_type(&mut masters, place.master, elements);
                        let aligned = [place.master, first, place.weight].iter().all(|at| at.is_multiple_of(ALIGNMENT));
                        assert!(aligned, "{place:?}");
                    }
                    let once = |(_, all): &(DType, Vec<usize>)| all.iter().all(|&count| count <= 1);
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
    fn the_weights_of_a_bucket_have_one_type() {
        let mut specs = specs(&[(1, &[100, 100]), (2, &[100, 100])]);
        [0, 2].into_iter().for_each(|index| specs[index].dtype = DType::Bf16);
        let layout = FlatLayout::new(&specs, usize::MAX, OptimizerShard::whole());
        let buckets: Vec<_> = layout.buckets.iter().map(|b| (b.layer, b.dtype, b.weights_start)).collect();
        let (f32, bf16) = (DType::F32, DType::Bf16);
        assert_eq!(buckets, [(2, f32, 128), (2, bf16, 128), (1, f32, 0), (1, bf16, 0)]);
        assert_eq!(layout.by_dtype, [(bf16, 256), (f32, 256)]);
    }
}
