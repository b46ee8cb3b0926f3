//! Slabs of a parameter: shards, files and optimizer shards describe their elements with them.

use std::ops::Range;

/// A dense, row-major box of a parameter's elements: its place in the whole, and its place in the values that a rank stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The slab's first element in the whole parameter, by axis.
    pub offset: Vec<usize>,
    /// The slab's sizes, by axis, without padding.
    pub sizes: Vec<usize>,
    /// The index of the slab's first element in the stored values. The slab lies there without gaps.
    pub start: usize,
}

impl Slab {
    /// The number of the slab's elements.
    pub fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The part of the slab in a range of the stored values, as slabs. For a matrix these are at most three: the rest
    /// of a row, whole rows, and the start of a row.
    pub fn within(&self, range: Range<usize>) -> Vec<Slab> {
        let first = range.start.max(self.start) - self.start;
        let end = range.end.saturating_sub(self.start).min(self.elements());
        let mut slabs = Vec::new();
        split(self, 0, first..end, &mut slabs);
        slabs
    }
}

/// Appends the slabs that make up a range of a slab's elements. The slab has one entry along each axis before
/// `axis`.
fn split(slab: &Slab, axis: usize, range: Range<usize>, slabs: &mut Vec<Slab>) {
    if range.is_empty() {
        return;
    }
    let row: usize = slab.sizes[axis + 1..].iter().product();
    let entries = |first: usize, count: usize| {
        let mut part = slab.clone();
        part.offset[axis] += first;
        part.sizes[axis] = count;
        part.start += first * row;
        part
    };
    let (head, tail) = (range.start.next_multiple_of(row), range.end / row * row);
    if head > tail {
        // The range lies within one entry.
        let entry = range.start / row;
        return split(&entries(entry, 1), axis + 1, range.start - entry * row..range.end - entry * row, slabs);
    }
    if range.start < head {
        let entry = head / row - 1;
        split(&entries(entry, 1), axis + 1, range.start - entry * row..row, slabs);
    }
    if head < tail {
        slabs.push(entries(head / row, (tail - head) / row));
    }
    if tail < range.end {
        split(&entries(tail / row, 1), axis + 1, 0..range.end - tail, slabs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_within_a_range_have_its_elements_and_no_others() {
        let slab = Slab { offset: vec![1, 2, 3], sizes: vec![3, 4, 5], start: 7 };
        for start in 0..slab.start + slab.elements() + 3 {
            for end in start..slab.start + slab.elements() + 3 {
                let mut found = Vec::new();
                for part in slab.within(start..end) {
                    for at in 0..part.elements() {
                        let place = [
                            at / (part.sizes[1] * part.sizes[2]),
                            at / part.sizes[2] % part.sizes[1],
                            at % part.sizes[2],
                        ];
                        let [i, j, k] = [0, 1, 2].map(|axis| part.offset[axis] + place[axis] - slab.offset[axis]);
                        // The place in the stored values follows from the element's place in the whole.
                        assert_eq!(part.start + at, slab.start + (i * 4 + j) * 5 + k, "{part:?} at {at}");
                        found.push(part.start + at);
                    }
                }
                let expected = start.max(slab.start)..end.min(slab.start + slab.elements());
                assert_eq!(found, expected.collect::<Vec<_>>(), "{start}..{end}");
            }
        }
        let row = Slab { offset: vec![0], sizes: vec![10], start: 0 };
        assert_eq!(row.within(3..20), [Slab { offset: vec![3], sizes: vec![7], start: 3 }]);
    }
}
