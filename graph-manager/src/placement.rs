//! Puts buffers with known lifetimes into as little memory as it can.

use device::ALIGNMENT;

use crate::by_time::ByTime;

/// A buffer to place: its size, and the steps of time it lives, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// Offsets for all intervals such that two that live at once do not overlap, and the bytes needed.
///
/// Largest first, each at the lowest offset that is free for its whole life: within a few percent of the optimum on
/// layered models (Pisarchyk and Lee, 2020), and a function of the input alone.
pub(crate) fn place(intervals: &[Interval]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(intervals[i].bytes), intervals[i].first, i));
    let mut offsets = vec![0; intervals.len()];
    let mut placed = ByTime::default();
    let mut total = 0;
    for index in order {
        let Interval { bytes, first, last } = intervals[index];
        let size = bytes.next_multiple_of(ALIGNMENT);
        let mut beside: Vec<usize> = placed.between(first, last).collect();
        beside.sort_by_key(|&other| offsets[other]);
        let mut offset = 0;
        for other in beside {
            if offsets[other] >= offset + size {
                break;
            }
            offset = offset.max(offsets[other] + intervals[other].bytes.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset + size);
        placed.insert(index, first, last);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(bytes: usize, first: usize, last: usize) -> Interval {
        Interval { bytes, first, last }
    }

    fn meet(a: &Interval, b: &Interval) -> bool {
        a.first <= b.last && b.first <= a.last
    }

    #[test]
    fn buffers_that_follow_each_other_share_an_address() {
        let (offsets, total) = place(&[interval(512, 0, 1), interval(512, 2, 3), interval(256, 4, 4)]);
        assert_eq!((offsets, total), (vec![0, 0, 0], 512));
    }

    #[test]
    fn a_stack_of_activations_needs_its_peak_and_no_more() {
        // Forward keeps four buffers, backward gives them back in reverse; each step has scratch of its own.
        let mut all: Vec<Interval> = (0..4).map(|i| interval(1024, i, 7 - i)).collect();
        all.extend((0..8).map(|i| interval(256, i, i)));
        let (offsets, total) = place(&all);
        assert_eq!(total, 4 * 1024 + 256);
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate().filter(|(j, b)| *j != i && meet(a, b)) {
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(apart, "{a:?} at {} and {b:?} at {}", offsets[i], offsets[j]);
            }
        }
    }
}
