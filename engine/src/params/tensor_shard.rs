//! Which part of a parameter a rank has when several share its layer.

use std::ops::Range;

use rayon::prelude::*;

/// How a parameter is cut over the ranks of a tensor-parallel group: along one axis, each group of rows or columns into
/// equal parts. A packed weight has several groups, such as queries, keys and values, of each of which a rank has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// 0: the rows are cut, 1: the columns.
    pub axis: usize,
    /// Sizes of the groups along that axis, a vocabulary's padding included; multiples of `ranks`.
    pub groups: Vec<usize>,
    /// Which part is here.
    pub rank: usize,
    /// Into how many parts.
    pub ranks: usize,
}

/// A dense block of a parameter: where it lies in the whole and in what a rank stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the whole, by axis.
    pub offset: Vec<usize>,
    /// Its sizes, by axis; padding is not part of it.
    pub sizes: Vec<usize>,
    /// Its first element in what is stored here, where it lies without gaps.
    pub start: usize,
}

impl Piece {
    /// Number of its elements.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// What of it lies in a range of the elements stored here, as dense blocks: of a matrix at most the rest of a row, whole
    /// rows, and the beginning of a row.
    pub fn within(&self, range: Range<usize>) -> Vec<Piece> {
        let first = range.start.max(self.start) - self.start;
        let end = range.end.saturating_sub(self.start).min(self.elements());
        let mut blocks = Vec::new();
        split(self, 0, first..end, &mut blocks);
        blocks
    }
}

/// Adds the dense blocks that a range of a piece's elements consists of; of the axes before `axis` it has one entry each.
fn split(piece: &Piece, axis: usize, range: Range<usize>, blocks: &mut Vec<Piece>) {
    if range.is_empty() {
        return;
    }
    let row: usize = piece.sizes[axis + 1..].iter().product();
    let entries = |first: usize, count: usize| {
        let mut part = piece.clone();
        part.offset[axis] += first;
        part.sizes[axis] = count;
        part.start += first * row;
        part
    };
    let (head, tail) = (range.start.next_multiple_of(row), range.end / row * row);
    if head > tail {
        // Within one entry.
        let entry = range.start / row;
        return split(&entries(entry, 1), axis + 1, range.start - entry * row..range.end - entry * row, blocks);
    }
    if range.start < head {
        let entry = head / row - 1;
        split(&entries(entry, 1), axis + 1, range.start - entry * row..row, blocks);
    }
    if head < tail {
        blocks.push(entries(head / row, (tail - head) / row));
    }
    if tail < range.end {
        split(&entries(tail / row, 1), axis + 1, 0..range.end - tail, blocks);
    }
}

impl Cut {
    /// What a rank stores of a parameter of that stored shape.
    pub fn stored(&self, shape: &[usize]) -> Vec<usize> {
        let mut stored = shape.to_vec();
        stored[self.axis] /= self.ranks;
        stored
    }

    /// The pieces that a rank has of a whole of these sizes, padding not counted.
    fn pieces(&self, whole: &[usize]) -> Vec<Piece> {
        let row: usize = whole[1..].iter().product();
        let (mut before, mut here) = (0, 0);
        let pieces = self.groups.iter().map(|group| {
            let part = group / self.ranks;
            let first = before + self.rank * part;
            let real = part.min(whole[self.axis].saturating_sub(first));
            let (mut offset, mut sizes) = (vec![0; whole.len()], whole.to_vec());
            (offset[self.axis], sizes[self.axis]) = (first, real);
            let start = if self.axis == 0 { here * row } else { 0 };
            before += group;
            here += part;
            Piece { offset, sizes, start }
        });
        pieces.filter(|piece| piece.elements() > 0).collect()
    }
}

/// The pieces of a parameter whose whole, padding not counted, has these sizes; all of it where nothing is cut.
pub fn pieces(whole: &[usize], cut: Option<&Cut>) -> Vec<Piece> {
    match cut {
        Some(cut) => cut.pieces(whole),
        None => vec![Piece { offset: vec![0; whole.len()], sizes: whole.to_vec(), start: 0 }],
    }
}

/// What a rank stores, `elements` values with 0 for padding, from the whole's values by their numbers.
pub fn fill(
    whole: &[usize],
    cut: Option<&Cut>,
    elements: usize,
    value: impl Fn(usize) -> f32 + Send + Sync,
) -> Vec<f32> {
    let width: usize = whole[1..].iter().product();
    let mut values = vec![0.0; elements];
    for piece in pieces(whole, cut) {
        let (row, column) = (piece.offset[0], piece.offset.get(1).copied().unwrap_or(0));
        let columns: usize = piece.sizes[1..].iter().product();
        let here = &mut values[piece.start..piece.start + piece.elements()];
        here.par_iter_mut().enumerate().for_each(|(at, here)| {
            *here = value((row + at / columns) * width + column + at % columns);
        });
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(axis: usize, groups: &[usize], rank: usize, ranks: usize) -> Cut {
        Cut { axis, groups: groups.to_vec(), rank, ranks }
    }

    fn filled(whole: &[usize], cut: &Cut, padded: &[usize]) -> Vec<usize> {
        let elements = cut.stored(padded).iter().product();
        fill(whole, Some(cut), elements, |i| i as f32 + 1.0).into_iter().map(|x| x as usize).collect()
    }

    #[test]
    fn a_packed_weight_is_cut_within_each_of_its_groups() {
        // Four query heads, two key heads, two value heads of one row of two columns.
        let second = cut(0, &[4, 2, 2], 1, 2);
        assert_eq!(second.stored(&[8, 2]), [4, 2]);
        assert_eq!(filled(&[8, 2], &second, &[8, 2]), [5, 6, 7, 8, 11, 12, 15, 16]);
        let starts: Vec<usize> = pieces(&[8, 2], Some(&second)).iter().map(|piece| piece.start).collect();
        assert_eq!(starts, [0, 4, 6]);
    }

    #[test]
    fn columns_are_cut_by_one_block() {
        let second = cut(1, &[6], 1, 3);
        assert_eq!(filled(&[2, 6], &second, &[2, 6]), [3, 4, 9, 10]);
        assert_eq!(pieces(&[2, 6], Some(&second)), [Piece { offset: vec![0, 2], sizes: vec![2, 2], start: 0 }]);
    }

    #[test]
    fn padding_is_zero_and_no_part_of_any_piece() {
        let whole = [5, 2];
        assert_eq!(filled(&whole, &cut(0, &[8], 0, 2), &[8, 2]), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(filled(&whole, &cut(0, &[8], 1, 2), &[8, 2]), [9, 10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(filled(&whole, &cut(0, &[8], 3, 4), &[8, 2]), [0; 4]);
        assert_eq!(pieces(&whole, Some(&cut(0, &[8], 3, 4))), []);
    }

    #[test]
    fn every_element_is_in_one_piece_of_one_rank() {
        for (whole, axis, groups) in [(vec![7, 3], 0, vec![8]), (vec![12], 0, vec![4, 8]), (vec![3, 8], 1, vec![8])] {
            for ranks in [1, 2, 4] {
                let mut padded = whole.clone();
                padded[axis] = groups.iter().sum();
                let mut all: Vec<usize> = (0..ranks)
                    .flat_map(|rank| filled(&whole, &cut(axis, &groups, rank, ranks), &padded))
                    .filter(|&x| x > 0)
                    .collect();
                all.sort_unstable();
                assert_eq!(all, (1..=whole.iter().product()).collect::<Vec<_>>(), "{whole:?} over {ranks}");
            }
        }
    }

    #[test]
    fn blocks_within_a_range_have_its_elements_and_no_others() {
        let piece = Piece { offset: vec![1, 2, 3], sizes: vec![3, 4, 5], start: 7 };
        for start in 0..piece.start + piece.elements() + 3 {
            for end in start..piece.start + piece.elements() + 3 {
                let mut found = Vec::new();
                for block in piece.within(start..end) {
                    for at in 0..block.elements() {
                        let place = [
                            at / (block.sizes[1] * block.sizes[2]),
                            at / block.sizes[2] % block.sizes[1],
                            at % block.sizes[2],
                        ];
                        let [i, j, k] = [0, 1, 2].map(|axis| block.offset[axis] + place[axis] - piece.offset[axis]);
                        // Where the element lies follows from its place in the whole.
                        assert_eq!(block.start + at, piece.start + (i * 4 + j) * 5 + k, "{block:?} at {at}");
                        found.push(block.start + at);
                    }
                }
                let expected = start.max(piece.start)..end.min(piece.start + piece.elements());
                assert_eq!(found, expected.collect::<Vec<_>>(), "{start}..{end}");
            }
        }
        let row = Piece { offset: vec![0], sizes: vec![10], start: 0 };
        assert_eq!(row.within(3..20), [Piece { offset: vec![3], sizes: vec![7], start: 3 }]);
    }
}
