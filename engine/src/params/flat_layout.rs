//! Where parameters lie in the flat buffers, in buckets that are reduced at once, and which part of each a rank updates.

use std::ops::Range;

use device::Tensor;

use crate::params::{ParamSpec, Twin};

/// Elements between two parameters' beginnings are a multiple of this: 256 bytes of f32, 128 of bf16.
const ALIGNMENT: usize = 64;

/// Which part of every bucket a rank has master weights and moments of: with a distributed optimizer (ZeRO stage 1,
/// Rajbhandari et al., 2020) one of as many equal parts as there are data-parallel ranks, else all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part.
    pub rank: usize,
    /// Into how many each bucket is cut.
    pub ranks: usize,
}

impl Shard {
    /// All of it.
    pub fn whole() -> Shard {
        Shard { rank: 0, ranks: 1 }
    }

    /// Whether other ranks have other parts.
    pub fn is_part(self) -> bool {
        self.ranks > 1
    }

    /// This rank's part of a tensor with a bucket's elements.
    pub fn of(self, tensor: Tensor) -> Tensor {
        let part = tensor.elements() / self.ranks;
        tensor.view(self.rank * part, [part])
    }
}

/// A range of the flat buffers whose gradients are complete, and are reduced, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The first layer with parameters in it, whose backward completes it and whose forward is the first to read it.
    pub layer: usize,
    /// Its first element.
    pub start: usize,
    /// Its elements, with what is added so that shards are equal and aligned.
    pub elements: usize,
    /// It has one parameter, which another stage has too.
    pub twin: Option<Twin>,
}

impl Bucket {
    /// The elements that a rank updates, counted as the flat buffers' are.
    fn held(&self, shard: Shard) -> Range<usize> {
        let part = self.elements / shard.ranks;
        let first = self.start + shard.rank * part;
        first..first + part
    }
}

/// What a rank updates of one parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of the first element within the parameter as it is stored here.
    pub first: usize,
    /// How many there are, possibly none.
    pub elements: usize,
    /// Where the first one lies in a flat buffer that has only what is held.
    pub at: usize,
}

/// The flat layout of parameters, in order of declaration.
#[derive(Clone, Debug)]
pub struct FlatLayout {
    /// Each parameter's first element.
    pub offsets: Vec<usize>,
    /// What of each parameter is updated here.
    pub held: Vec<Held>,
    /// In the order backward completes them: from the last layer to the first.
    pub buckets: Vec<Bucket>,
    /// Elements of everything.
    pub total: usize,
    /// Which part is updated here.
    pub shard: Shard,
}

impl FlatLayout {
    /// Lays out parameters declared in layer order, in buckets of at least `bucket_bytes` of f32. Layer 0 has a bucket
    /// of its own: with tied embeddings its backward is the last to write the table. So has a parameter that another stage
    /// has too, and no bucket has layers between which other stages' lie: their backwards are far apart.
    pub fn new(specs: &[ParamSpec], bucket_bytes: usize, shard: Shard) -> FlatLayout {
        // Numbers of the parameters that begin a bucket, from the last bucket to the first.
        let mut firsts = Vec::new();
        let mut bytes = 0;
        for (index, spec) in specs.iter().enumerate().rev() {
            bytes += spec.shape.elements().next_multiple_of(ALIGNMENT) * 4;
            let ends = match index.checked_sub(1).map(|before| &specs[before]) {
                None => true,
                Some(before) if before.twin != spec.twin => true,
                Some(before) if before.layer == spec.layer => false,
                Some(before) => bytes >= bucket_bytes || before.layer == 0 || before.layer + 1 < spec.layer,
            };
            if ends {
                firsts.push(index);
                bytes = 0;
            }
        }
        let mut offsets = Vec::with_capacity(specs.len());
        let mut buckets = Vec::with_capacity(firsts.len());
        let mut total = 0;
        for (number, &first) in firsts.iter().enumerate().rev() {
            let end = if number == 0 { specs.len() } else { firsts[number - 1] };
            let start = total;
            for spec in &specs[first..end] {
                offsets.push(total);
                total += spec.shape.elements().next_multiple_of(ALIGNMENT);
            }
            total = start + (total - start).next_multiple_of(ALIGNMENT * shard.ranks);
            let ParamSpec { layer, twin, .. } = specs[first];
            buckets.push(Bucket { layer, start, elements: total - start, twin });
        }
        buckets.reverse();
        let held = specs.iter().zip(&offsets).map(|(spec, &offset)| held(offset, spec, &buckets, shard)).collect();
        FlatLayout { offsets, held, buckets, total, shard }
    }

    /// Elements of all that is held here.
    pub fn held_elements(&self) -> usize {
        self.total / self.shard.ranks
    }
}

fn held(offset: usize, spec: &ParamSpec, buckets: &[Bucket], shard: Shard) -> Held {
    let inside = |bucket: &&Bucket| (bucket.start..bucket.start + bucket.elements).contains(&offset);
    let Some(bucket) = buckets.iter().find(inside) else { return Held::default() };
    let part = bucket.held(shard);
    let (first, end) = (offset.max(part.start), (offset + spec.shape.elements()).min(part.end));
    if first >= end {
        return Held::default();
    }
    // What is held of the buckets before lies before.
    let at = bucket.start / shard.ranks + first - part.start;
    Held { first: first - offset, elements: end - first, at }
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
    fn every_element_of_every_parameter_is_held_by_one_rank_at_one_place() {
        let specs = specs(&[(0, &[1000]), (1, &[7, 300, 64]), (2, &[63, 65]), (4, &[1, 2, 5000])]);
        for ranks in [1, 2, 3, 8] {
            for bucket_bytes in [0, 1500, usize::MAX] {
                let mut holders: Vec<Vec<usize>> = specs.iter().map(|spec| vec![0; spec.shape.elements()]).collect();
                for rank in 0..ranks {
                    let layout = FlatLayout::new(&specs, bucket_bytes, Shard { rank, ranks });
                    let mut places = vec![0; layout.held_elements()];
                    for (held, holders) in layout.held.iter().zip(&mut holders) {
                        holders[held.first..][..held.elements].iter_mut().for_each(|count| *count += 1);
                        places[held.at..][..held.elements].iter_mut().for_each(|count| *count += 1);
                        assert!(held.at.is_multiple_of(ALIGNMENT) && held.first.is_multiple_of(ALIGNMENT), "{held:?}");
                    }
                    assert!(places.iter().all(|&count| count <= 1), "two elements lie in one place");
                }
                assert!(holders.iter().flatten().all(|&count| count == 1), "{ranks} ranks, {bucket_bytes} bytes");
            }
        }
    }

    #[test]
    fn buckets_cover_everything_without_gap_from_the_last_layer_to_the_first() {
        let specs = specs(&[(0, &[100]), (1, &[100, 100]), (2, &[100]), (3, &[100])]);
        let layout = FlatLayout::new(&specs, 1024, Shard { rank: 1, ranks: 4 });
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
    fn a_parameter_of_two_stages_is_alone_in_its_bucket_and_no_bucket_reaches_over_other_stages_layers() {
        let mut first = specs(&[(0, &[100, 30]), (1, &[100]), (2, &[100]), (5, &[100]), (6, &[100])]);
        first[0].twin = Some(Twin::Original);
        let mut last = specs(&[(3, &[100]), (4, &[100]), (7, &[100]), (8, &[10, 100])]);
        last[4].twin = Some(Twin::Replica);
        let buckets = |specs: &[ParamSpec]| {
            let layout = FlatLayout::new(specs, usize::MAX, Shard { rank: 0, ranks: 2 });
            layout.buckets.iter().map(|b| (b.layer, b.elements, b.twin)).collect::<Vec<_>>()
        };
        let (original, replica) = (Some(Twin::Original), Some(Twin::Replica));
        assert_eq!(buckets(&first), [(5, 256, None), (1, 256, None), (0, 128, None), (0, 128, original)]);
        assert_eq!(buckets(&last), [(8, 128, replica), (7, 256, None), (3, 256, None)]);
    }
}
