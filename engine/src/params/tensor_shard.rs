//! The shard of a parameter that a tensor-parallel rank stores.

use std::ops::Range;

use rayon::prelude::*;

use super::slab::Slab;

/// Rows or columns that are divided by themselves, such as the queries of a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardGroup {
    /// Their number, with a vocabulary's padding; a multiple of `parts`.
    pub size: usize,
    /// The number of equal parts; it divides the number of ranks. If it is smaller, consecutive ranks store copies of the
    /// same part: a key head, if there are more ranks than key heads.
    pub parts: usize,
}

/// How a parameter is divided over a tensor-parallel group: along one axis, in equal parts. A packed weight consists of
/// several groups along that axis, such as queries, keys and values. Each group is divided by itself, so that every rank
/// has queries, keys and values of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShard {
    /// 0 divides rows, 1 divides columns.
    pub axis: usize,
    /// The groups along that axis. Those with fewer parts than ranks come last, and have as many parts each.
    pub groups: Vec<ShardGroup>,
    /// This rank within the group.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
}

/// Rows of a parameter that other ranks store copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedRows {
    /// The first of them among the stored rows. They go on to the end.
    pub first: usize,
    /// The index of their part among `parts`.
    pub part: usize,
    /// The number of parts.
    pub parts: usize,
    /// This rank is the first of those that store them.
    pub is_first_copy: bool,
}

impl TensorShard {
    /// The sizes that a rank stores of a parameter of these padded sizes.
    pub fn stored_sizes(&self, padded: &[usize]) -> Vec<usize> {
        let mut stored = padded.to_vec();
        stored[self.axis] = self.groups.iter().map(|group| group.size / group.parts).sum();
        stored
    }

    /// The stored rows that other ranks store too.
    pub fn copied_rows(&self) -> Option<CopiedRows> {
        let at = self.groups.iter().position(|group| group.parts < self.ranks)?;
        let (parts, copies) = (self.groups[at].parts, self.ranks / self.groups[at].parts);
        let first = self.groups[..at].iter().map(|group| group.size / group.parts).sum();
        Some(CopiedRows { first, part: self.rank / copies, parts, is_first_copy: self.rank.is_multiple_of(copies) })
    }

    /// The slabs that a rank has of a whole of these sizes, without padding.
    fn slabs(&self, whole: &[usize]) -> Vec<Slab> {
        let row: usize = whole[1..].iter().product();
        let (mut before, mut here) = (0, 0);
        let slabs = self.groups.iter().map(|group| {
            let part = group.size / group.parts;
            let first = before + self.rank / (self.ranks / group.parts) * part;
            let real = part.min(whole[self.axis].saturating_sub(first));
            let (mut offset, mut sizes) = (vec![0; whole.len()], whole.to_vec());
            (offset[self.axis], sizes[self.axis]) = (first, real);
            let start = if self.axis == 0 { here * row } else { 0 };
            before += group.size;
            here += part;
            Slab { offset, sizes, start }
        });
        slabs.filter(|slab| slab.elements() > 0).collect()
    }
}

/// The slabs of a parameter of these whole sizes, without padding: those of the shard, or one slab with
/// everything.
pub(super) fn slabs(whole: &[usize], shard: Option<&TensorShard>) -> Vec<Slab> {
    match shard {
        Some(shard) => shard.slabs(whole),
        None => vec![Slab { offset: vec![0; whole.len()], sizes: whole.to_vec(), start: 0 }],
    }
}

/// A core computes so many values in turn.
const FILLED: usize = 4096;

/// The values that a rank stores, those in `range`, with 0 for padding. `value` gives an element of the whole by its index.
pub(super) fn fill(
    whole: &[usize],
    shard: Option<&TensorShard>,
    range: Range<usize>,
    value: impl Fn(usize) -> f32 + Send + Sync,
) -> Vec<f32> {
    let width: usize = whole[1..].iter().product();
    let mut values = vec![0.0; range.len()];
    for slab in slabs(whole, shard) {
        let (row, column) = (slab.offset[0], slab.offset.get(1).copied().unwrap_or(0));
        let columns: usize = slab.sizes[1..].iter().product();
        let (first, end) = (slab.start.max(range.start), (slab.start + slab.elements()).min(range.end));
        if first >= end {
            continue;
        }
        let here = &mut values[first - range.start..end - range.start];
        here.par_chunks_mut(FILLED).enumerate().for_each(|(number, here)| {
            for (at, here) in (first - slab.start + number * FILLED..).zip(here) {
                *here = value((row + at / columns) * width + column + at % columns);
            }
        });
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(axis: usize, groups: &[usize], rank: usize, ranks: usize) -> TensorShard {
        let groups = groups.iter().map(|&size| ShardGroup { size, parts: ranks }).collect();
        TensorShard { axis, groups, rank, ranks }
    }

    fn filled(whole: &[usize], shard: &TensorShard, padded: &[usize]) -> Vec<usize> {
        let elements = shard.stored_sizes(padded).iter().product();
        let of = |range| fill(whole, Some(shard), range, |i| i as f32 + 1.0);
        let all = of(0..elements);
        for (first, end) in [(0, elements / 2), (1, elements), (elements / 3, elements / 3), (elements - 1, elements)] {
            assert_eq!(of(first..end), all[first..end], "{first}..{end} of {whole:?}");
        }
        all.into_iter().map(|x| x as usize).collect()
    }

    #[test]
    fn a_packed_weight_is_divided_within_each_of_its_groups() {
        // Four query heads, two key heads, two value heads of one row of two columns.
        let second = shard(0, &[4, 2, 2], 1, 2);
        assert_eq!(second.stored_sizes(&[8, 2]), [4, 2]);
        assert_eq!(filled(&[8, 2], &second, &[8, 2]), [5, 6, 7, 8, 11, 12, 15, 16]);
        let starts: Vec<usize> = slabs(&[8, 2], Some(&second)).iter().map(|slab| slab.start).collect();
        assert_eq!(starts, [0, 4, 6]);
    }

    #[test]
    fn ranks_share_copies_of_groups_with_fewer_parts_than_ranks() {
        // Four query heads, two key heads, two value heads, of one row of two columns, over four ranks.
        let of = |rank: usize| {
            let groups = [(4, 4), (2, 2), (2, 2)].map(|(size, parts)| ShardGroup { size, parts });
            TensorShard { axis: 0, groups: groups.into(), rank, ranks: 4 }
        };
        assert_eq!(of(0).stored_sizes(&[8, 2]), [3, 2]);
        assert_eq!(filled(&[8, 2], &of(1), &[8, 2]), [3, 4, 9, 10, 13, 14]);
        assert_eq!(filled(&[8, 2], &of(2), &[8, 2]), [5, 6, 11, 12, 15, 16]);
        assert_eq!(filled(&[8, 2], &of(3), &[8, 2]), [7, 8, 11, 12, 15, 16]);
        let copies: Vec<_> = (0..4).map(|rank| of(rank).copied_rows().unwrap()).collect();
        assert!(copies.iter().all(|rows| (rows.first, rows.parts) == (1, 2)), "{copies:?}");
        assert_eq!(
            copies.iter().map(|rows| (rows.part, rows.is_first_copy)).collect::<Vec<_>>(),
            [(0, true), (0, false), (1, true), (1, false)]
        );
        assert_eq!(shard(0, &[4, 2, 2], 1, 2).copied_rows(), None);
    }

    #[test]
    fn a_shard_of_columns_is_one_block() {
        let second = shard(1, &[6], 1, 3);
        assert_eq!(filled(&[2, 6], &second, &[2, 6]), [3, 4, 9, 10]);
        let slab = Slab { offset: vec![0, 2], sizes: vec![2, 2], start: 0 };
        assert_eq!(slabs(&[2, 6], Some(&second)), [slab]);
    }

    #[test]
    fn padding_is_zero_and_in_no_block() {
        let whole = [5, 2];
        assert_eq!(filled(&whole, &shard(0, &[8], 0, 2), &[8, 2]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(filled(&whole, &shard(0, &[8], 1, 2), &[8, 2]), [9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(filled(&whole, &shard(0, &[8], 3, 4), &[8, 2]), [0; 4]);
        assert_eq!(slabs(&whole, Some(&shard(0, &[8], 3, 4))), []);
    }

    #[test]
    fn every_element_is_in_one_block_of_one_rank() {
        for (whole, axis, groups) in [(vec![7, 3], 0, vec![8]), (vec![12], 0, vec![4, 8]), (vec![3, 8], 1, vec![8])] {
            for ranks in [1, 2, 4] {
                let mut padded = whole.clone();
                padded[axis] = groups.iter().sum();
                let mut all: Vec<usize> = (0..ranks)
                    .flat_map(|rank| filled(&whole, &shard(axis, &groups, rank, ranks), &padded))
                    .filter(|&x| x > 0)
                    .collect();
                all.sort_unstable();
                assert_eq!(all, (1..=whole.iter().product()).collect::<Vec<_>>(), "{whole:?} over {ranks}");
            }
        }
    }
}
