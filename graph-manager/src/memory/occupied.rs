//! The bytes of an area that are in use in a span of time.
//!
//! A segment tree over time. An interval is stored in the few nodes that together are its time, as their **cover**.
//! These nodes and all nodes above them also store it as **below**. So the bytes that are in use in a span are the
//! union of `below` of the few nodes that together are the span, and of `cover` of the nodes above them. Both are kept
//! as ranges of bytes, and ranges that touch become one. Buffers are packed, so many buffers make few ranges: a search
//! looks at ranges, not at buffers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Bytes in use, as disjoint ranges that do not touch: a map from the start of each to its end.
#[derive(Clone, Default)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// Adds a range of at least one byte.
    fn add(&mut self, start: usize, end: usize) {
        let (mut start, mut end) = (start, end);
        while let Some((first, last)) = self.last_before(end + 1).filter(|(_, last)| *last >= start) {
            (start, end) = (start.min(first), end.max(last));
            self.0.remove(&first);
            if first == start {
                break;
            }
        }
        self.0.insert(start, end);
    }

    /// The last range that starts before that byte.
    fn last_before(&self, byte: usize) -> Option<(usize, usize)> {
        self.0.range(..byte).next_back().map(|(start, end)| (*start, *end))
    }
}

/// Bytes in use over time.
pub(crate) struct Occupied {
    /// The times at which slots of time begin. No interval begins or ends within a slot.
    begins: Vec<usize>,
    /// The number of leaves of the tree, one for each slot. Node 1 is the root, the children of node n are 2 n and 2 n
    /// + 1.
    leaves: usize,
    cover: Vec<Ranges>,
    below: Vec<Ranges>,
}

impl Occupied {
    /// Nothing is in use. Only spans among these will be [occupied](Occupied::occupy).
    pub(crate) fn new(spans: impl Iterator<Item = RangeInclusive<usize>>) -> Occupied {
        let mut begins: Vec<usize> = spans.flat_map(|span| [*span.start(), span.end() + 1]).chain([0]).collect();
        begins.sort_unstable();
        begins.dedup();
        let leaves = begins.len().next_power_of_two();
        Occupied {
            begins,
            leaves,
            cover: vec![Ranges::default(); 2 * leaves],
            below: vec![Ranges::default(); 2 * leaves],
        }
    }

    /// The bytes `start..end` are in use in that span.
    pub(crate) fn occupy(&mut self, span: RangeInclusive<usize>, start: usize, end: usize) {
        if start == end {
            return;
        }
        let (whole, above) = self.nodes(span);
        whole.iter().for_each(|&node| self.cover[node].add(start, end));
        whole.iter().chain(&above).for_each(|&node| self.below[node].add(start, end));
    }

    /// The lowest offset at which so many bytes are free for all of that span.
    pub(crate) fn lowest_free(&self, span: RangeInclusive<usize>, bytes: usize) -> usize {
        let used = self.used(span);
        let mut offset = 0;
        // No offset below the end of a range that is in the way is free. The search ends when none is in the way.
        loop {
            let before = offset;
            for ranges in &used {
                if let Some((_, end)) = ranges.last_before(offset + bytes) {
                    offset = offset.max(end);
                }
            }
            if offset == before {
                return offset;
            }
        }
    }

    /// Whether one of the bytes `start..end` is in use at some time of that span.
    pub(crate) fn is_used(&self, span: RangeInclusive<usize>, start: usize, end: usize) -> bool {
        let hits = |ranges: &&Ranges| ranges.last_before(end).is_some_and(|(_, last)| last > start);
        self.used(span).iter().any(hits)
    }

    /// All that is in use in that span.
    fn used(&self, span: RangeInclusive<usize>) -> Vec<&Ranges> {
        let (whole, above) = self.nodes(span);
        let sets = whole.iter().map(|&node| &self.below[node]).chain(above.iter().map(|&node| &self.cover[node]));
        sets.filter(|ranges| !ranges.0.is_empty()).collect()
    }

    /// The nodes that together are a span, and all nodes above.
    fn nodes(&self, span: RangeInclusive<usize>) -> (Vec<usize>, Vec<usize>) {
        let slot = |time: usize| self.begins.partition_point(|begin| *begin <= time) - 1;
        let (first, last) = (slot(*span.start()), slot(*span.end()));
        let (mut whole, mut above) = (Vec::new(), Vec::new());
        let mut open = vec![(1, 0, self.leaves - 1)];
        while let Some((node, from, to)) = open.pop() {
            if first <= from && to <= last {
                whole.push(node);
                continue;
            }
            above.push(node);
            let middle = from + (to - from) / 2;
            if first <= middle {
                open.push((2 * node, from, middle));
            }
            if last > middle {
                open.push((2 * node + 1, middle + 1, to));
            }
        }
        (whole, above)
    }
}
