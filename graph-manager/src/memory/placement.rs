//! Puts buffers with known lifetimes into little memory.

use std::collections::HashMap;

use device::ALIGNMENT;

use super::occupied::Occupied;

/// A buffer to place: its size, and the first and the last time at which it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Interval {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The places of buffers.
pub(crate) struct Placed {
    /// By interval, in bytes.
    pub(crate) offsets: Vec<usize>,
    /// Bytes needed.
    pub(crate) total: usize,
}

/// Gives buffers offsets. It keeps earlier results, because the microbatches of a long step repeat each other.
#[derive(Default)]
pub(crate) struct Placer {
    /// Buffers that were placed together, in times counted from the first buffer's, with offsets and the bytes needed.
    known: HashMap<Vec<Interval>, (Vec<usize>, usize)>,
}

impl Placer {
    /// Gives each buffer an offset, such that no two overlap in time and in memory.
    ///
    /// Largest first, each at the lowest offset that is free for its whole life: within a few percent of the optimum on
    /// layered models (Pisarchyk and Lee, 2020). The result depends on the intervals alone.
    pub(crate) fn place(&mut self, intervals: &[Interval]) -> Placed {
        let mut in_time: Vec<usize> = (0..intervals.len()).collect();
        in_time.sort_by_key(|&i| intervals[i].first);
        let mut placed = Placed { offsets: vec![0; intervals.len()], total: 0 };
        // Buffers are placed in groups. Between two groups lies a time at which no buffer is in use.
        let mut next = 0;
        while next < in_time.len() {
            let (first, mut end) = (next, intervals[in_time[next]].last);
            let start = intervals[in_time[next]].first;
            while next < in_time.len() && intervals[in_time[next]].first <= end {
                end = end.max(intervals[in_time[next]].last);
                next += 1;
            }
            let together = &mut in_time[first..next];
            together.sort_unstable();
            let moved = together.iter().map(|&i| {
                let Interval { bytes, first, last } = intervals[i];
                Interval { bytes, first: first - start, last: last - start }
            });
            let moved: Vec<Interval> = moved.collect();
            let (offsets, total) = self.known.entry(moved).or_insert_with_key(|moved| place_together(moved));
            together.iter().zip(offsets).for_each(|(&i, offset)| placed.offsets[i] = *offset);
            placed.total = placed.total.max(*total);
        }
        placed
    }
}

/// Places intervals that leave no gap in time; returns the offsets and the bytes needed.
fn place_together(intervals: &[Interval]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(intervals[i].bytes), intervals[i].first, i));
    let (mut offsets, mut total) = (vec![0; intervals.len()], 0);
    let mut occupied = Occupied::new(intervals.iter().map(|interval| interval.first..=interval.last));
    for index in order {
        let Interval { bytes, first, last } = intervals[index];
        let size = bytes.next_multiple_of(ALIGNMENT);
        let offset = occupied.lowest_free(first..=last, size);
        occupied.occupy(first..=last, offset, offset + size);
        offsets[index] = offset;
        total = total.max(offset + size);
    }
    (offsets, total)
}

impl Placed {
    /// The bytes in use over time.
    pub(crate) fn occupied(&self, intervals: &[Interval]) -> Occupied {
        let mut occupied = Occupied::new(intervals.iter().map(|interval| interval.first..=interval.last));
        for (Interval { bytes, first, last }, offset) in intervals.iter().zip(&self.offsets) {
            occupied.occupy(*first..=*last, *offset, offset + bytes.next_multiple_of(ALIGNMENT));
        }
        occupied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same each time.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % bound
        }
    }

    /// The rule of placement in the simplest form: each interval looks at all that are placed.
    fn reference(intervals: &[Interval]) -> (Vec<usize>, usize) {
        let mut order: Vec<usize> = (0..intervals.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(intervals[i].bytes), intervals[i].first, i));
        let (mut offsets, mut total, mut placed) = (vec![0; intervals.len()], 0, Vec::<usize>::new());
        for index in order {
            let Interval { bytes, first, last } = intervals[index];
            let size = bytes.next_multiple_of(ALIGNMENT);
            let overlaps = |other: &&usize| intervals[**other].first <= last && first <= intervals[**other].last;
            let mut neighbours: Vec<usize> = placed.iter().filter(overlaps).copied().collect();
            neighbours.sort_by_key(|&other| offsets[other]);
            let mut offset = 0;
            for other in neighbours {
                if offsets[other] >= offset + size {
                    break;
                }
                offset = offset.max(offsets[other] + intervals[other].bytes.next_multiple_of(ALIGNMENT));
            }
            offsets[index] = offset;
            total = total.max(offset + size);
            placed.push(index);
        }
        (offsets, total)
    }

    #[test]
    fn random_intervals_lie_where_the_simplest_form_of_the_rule_puts_them() {
        let mut numbers = Numbers(1);
        for round in 0..400 {
            let (count, times) = (1 + numbers.below(120), 1 + numbers.below(300));
            let sizes = [3, 40, 5000][round % 3];
            let mut interval = || {
                let first = numbers.below(times);
                let length = if numbers.below(3) == 0 { numbers.below(times) } else { numbers.below(4) };
                Interval { bytes: 100 * numbers.below(sizes), first, last: first + length }
            };
            let intervals: Vec<Interval> = (0..count).map(|_| interval()).collect();
            let placed = Placer::default().place(&intervals);
            assert_eq!((placed.offsets.clone(), placed.total), reference(&intervals), "{intervals:?}");
            let occupied = placed.occupied(&intervals);
            for _ in 0..20 {
                let (from, start) = (numbers.below(times), numbers.below(placed.total + 1000));
                let (to, end) = (from + numbers.below(20), start + 1 + numbers.below(2000));
                let in_the_way = intervals.iter().zip(&placed.offsets).any(|(interval, offset)| {
                    let taken = offset + interval.bytes.next_multiple_of(ALIGNMENT);
                    interval.first <= to && from <= interval.last && *offset < end && start < taken
                });
                assert_eq!(occupied.is_used(from..=to, start, end), in_the_way, "{intervals:?}");
            }
        }
    }

    #[test]
    fn what_repeats_later_lies_where_it_lay_before() {
        let mut numbers = Numbers(7);
        let one: Vec<Interval> = (0..40)
            .map(|at| Interval { bytes: 100 * numbers.below(50), first: at, last: at + 1 + numbers.below(9) })
            .collect();
        let again = one.iter().map(|each| Interval { first: each.first + 1000, last: each.last + 1000, ..*each });
        let both: Vec<Interval> = one.iter().copied().chain(again).collect();
        let placed = Placer::default().place(&both);
        assert_eq!((placed.offsets.clone(), placed.total), reference(&both));
        assert_eq!(placed.offsets[..one.len()], placed.offsets[one.len()..]);
    }

    #[test]
    fn four_thousand_layers_are_placed_one_over_the_other() {
        let (layers, each) = (4000, 10);
        let mut intervals = Vec::new();
        for layer in 0..layers {
            // Buffers that a forward keeps for its backward, and buffers that each of the two needs for itself.
            let (forward, backward) = (layer * each, (2 * layers - layer) * each);
            for buffer in 0..8 {
                let bytes = ALIGNMENT * (1 + buffer);
                intervals.push(Interval { bytes, first: forward + buffer, last: backward + buffer });
                intervals.push(Interval { bytes, first: forward + buffer, last: forward + buffer + 1 });
                intervals.push(Interval { bytes, first: backward + buffer, last: backward + buffer + 1 });
            }
        }
        let total = Placer::default().place(&intervals).total;
        let kept: usize = intervals.iter().step_by(3).map(|interval| interval.bytes).sum();
        assert!((kept..kept + 24 * ALIGNMENT).contains(&total), "{total} bytes, of which {kept} are kept");
    }
}
