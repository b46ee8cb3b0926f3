//! The shard of a parameter that a tensor-parallel rank stores.

use std::ops::Range;

use rayon::prelude::*;

use super::dense_block::DenseBlock;

/// How a parameter is divided over a tensor-parallel group: along one axis, in equal parts. A packed weight consists of
/// several groups along that axis, such as queries, keys and values. Each group is divided by itself, so that every rank
/// has queries, keys and values of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShard {
    /// 0 divides rows, 1 divides columns.
    pub axis: usize,
    /// The sizes of the groups along that axis, with a vocabulary's padding; multiples of `ranks`.
    pub groups: Vec<usize>,
    /// Which part this rank stores.
    pub rank: usize,
    /// The number of parts.
    pub ranks: usize,
}

impl TensorShard {
    /// The sizes that a rank stores of a parameter of these padded sizes.
    pub fn stored_sizes(&self, padded: &[usize]) -> Vec<usize> {
        let mut stored = padded.to_vec();
        stored[self.axis] /= self.ranks;
        stored
    }

    /// The dense blocks that a rank has of a whole of these sizes, without padding.
    fn dense_blocks(&self, whole: &[usize]) -> Vec<DenseBlock> {
        let row: usize = whole[1..].iter().product();
        let (mut before, mut here) = (0, 0);
        let blocks = self.groups.iter().map(|group| {
            let part = group / self.ranks;
            let first = before + self.rank * part;
            let real = part.min(whole[self.axis].saturating_sub(first));
            let (mut offset, mut sizes) = (vec![0; whole.len()], whole.to_vec());
            (offset[self.axis], sizes[self.axis]) = (first, real);
            let start = if self.axis == 0 { here * row } else { 0 };
            before += group;
            here += part;
            DenseBlock { offset, sizes, start }
        });
        blocks.filter(|block| block.elements() > 0).collect()
    }
}

/// The dense blocks of a parameter whose whole has these sizes, without padding: those of the shard, or one block with
/// everything.
pub(super) fn dense_blocks(whole: &[usize], shard: Option<&TensorShard>) -> Vec<DenseBlock> {
    match shard {
        Some(shard) => shard.dense_blocks(whole),
        None => vec![DenseBlock { offset: vec![0; whole.len()], sizes: whole.to_vec(), start: 0 }],
    }
}

/// The values that a rank stores, those in `range`, with 0 for padding. `value` gives an element of the whole by its index.
pub(super) fn fill(
    whole: &[usize],
    shard: Option<&TensorShard>,
    range: Range<usize>,
    value: impl Fn(usize) -> f32 + Send + Sync,
) -> Vec<f32> {
    let width: usize = whole[1..].iter().product();
    let mut values = vec![0.0; range.len()];
    for block in dense_blocks(whole, shard) {
        let (row, column) = (block.offset[0], block.offset.get(1).copied().unwrap_or(0));
        let columns: usize = block.sizes[1..].iter().product();
        let (first, end) = (block.start.max(range.start), (block.start + block.elements()).min(range.end));
        if first >= end {
            continue;
        }
        let here = &mut values[first - range.start..end - range.start];
        here.par_iter_mut().enumerate().for_each(|(i, here)| {
            let at = first - block.start + i;
            *here = value((row + at / columns) * width + column + at % columns);
        });
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(axis: usize, groups: &[usize], rank: usize, ranks: usize) -> TensorShard {
        TensorShard { axis, groups: groups.to_vec(), rank, ranks }
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
        let starts: Vec<usize> = dense_blocks(&[8, 2], Some(&second)).iter().map(|block| block.start).collect();
        assert_eq!(starts, [0, 4, 6]);
    }

    #[test]
    fn a_shard_of_columns_is_one_block() {
        let second = shard(1, &[6], 1, 3);
        assert_eq!(filled(&[2, 6], &second, &[2, 6]), [3, 4, 9, 10]);
        let block = DenseBlock { offset: vec![0, 2], sizes: vec![2, 2], start: 0 };
        assert_eq!(dense_blocks(&[2, 6], Some(&second)), [block]);
    }

    #[test]
    fn padding_is_zero_and_in_no_block() {
        let whole = [5, 2];
        assert_eq!(filled(&whole, &shard(0, &[8], 0, 2), &[8, 2]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(filled(&whole, &shard(0, &[8], 1, 2), &[8, 2]), [9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(filled(&whole, &shard(0, &[8], 3, 4), &[8, 2]), [0; 4]);
        assert_eq!(dense_blocks(&whole, Some(&shard(0, &[8], 3, 4))), []);
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
