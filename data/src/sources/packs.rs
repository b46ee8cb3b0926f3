//! Packing: several conversations in a sample of a fixed length.

use std::collections::BTreeMap;
use std::ops::Range;

/// The conversations of each sample.
pub(crate) struct Packs {
    /// The conversations of all samples, one sample after the other.
    members: Vec<u32>,
    /// The end of each sample in `members`.
    ends: Vec<usize>,
    /// For each sample, the number of targets up to the sample's end, all earlier samples included.
    targets: Vec<u64>,
}

/// The size of a conversation.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    /// Number of inputs; at least 1.
    pub(crate) inputs: usize,
    /// Number of targets that have a loss.
    pub(crate) targets: u64,
}

impl Packs {
    /// Packs conversations into samples of `seq` inputs, at most `most` in one: the longest first, each into the sample that it
    /// fills best. (This is best-fit decreasing bin packing.) No conversation takes more than `seq` inputs.
    pub(crate) fn new(items: &[Item], seq: usize, most: usize) -> Packs {
        let mut longest_first: Vec<u32> = (0..items.len() as u32).collect();
        longest_first.sort_by_key(|&item| std::cmp::Reverse(items[item as usize].inputs));
        let mut samples: Vec<Vec<u32>> = Vec::new();
        // Samples that take more, by the inputs that they have left.
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for item in longest_first {
            let inputs = items[item as usize].inputs;
            let best = open.range(inputs..).next().map(|(&left, _)| left);
            let (sample, left) = match best.and_then(|left| Some((open.get_mut(&left)?.pop()?, left))) {
                Some(found) => found,
                None => {
                    samples.push(Vec::new());
                    (samples.len() - 1, seq)
                }
            };
            if best.is_some_and(|left| open[&left].is_empty()) {
                open.remove(&left);
            }
            samples[sample].push(item);
            if samples[sample].len() < most && left > inputs {
                open.entry(left - inputs).or_default().push(sample);
            }
        }
        // In the order of the data, as far as there is one.
        samples.iter_mut().for_each(|members| members.sort_unstable());
        samples.sort_unstable();
        let mut packs = Packs { members: Vec::with_capacity(items.len()), ends: Vec::new(), targets: Vec::new() };
        let mut total = 0;
        for members in samples {
            total += members.iter().map(|&item| items[item as usize].targets).sum::<u64>();
            packs.members.extend(members);
            packs.ends.push(packs.members.len());
            packs.targets.push(total);
        }
        packs
    }

    /// Number of samples.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The conversations of a sample, in order.
    pub(crate) fn members(&self, sample: usize) -> &[u32] {
        let begin = if sample == 0 { 0 } else { self.ends[sample - 1] };
        &self.members[begin..self.ends[sample]]
    }

    /// The number of targets in a range of samples.
    pub(crate) fn targets(&self, range: Range<usize>) -> u64 {
        let before = |at: usize| if at == 0 { 0 } else { self.targets[at - 1] };
        before(range.end) - before(range.start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(inputs: &[usize]) -> Vec<Item> {
        inputs.iter().map(|&inputs| Item { inputs, targets: inputs as u64 }).collect()
    }

    fn samples(packs: &Packs) -> Vec<Vec<u32>> {
        (0..packs.count()).map(|sample| packs.members(sample).to_vec()).collect()
    }

    #[test]
    fn each_goes_where_it_fills_best() {
        let all = items(&[4, 10, 3, 6, 7]);
        assert_eq!(samples(&Packs::new(&all, 10, 8)), [vec![0, 3], vec![1], vec![2, 4]]);
        assert_eq!(samples(&Packs::new(&all, 10, 1)).len(), 5);
        let packs = Packs::new(&items(&[1; 7]), 10, 3);
        assert_eq!(packs.count(), 3, "no more than three in a sample");
        assert_eq!((packs.targets(0..3), packs.targets(0..0)), (7, 0));
    }

    proptest! {
        #[test]
        fn every_conversation_is_in_one_sample_that_has_room(
            inputs in prop::collection::vec(1..33usize, 0..60), most in 1..9usize,
        ) {
            let all = items(&inputs);
            let packs = Packs::new(&all, 32, most);
            let mut seen: Vec<u32> = Vec::new();
            for sample in 0..packs.count() {
                let members = packs.members(sample);
                let filled: usize = members.iter().map(|&item| inputs[item as usize]).sum();
                prop_assert!(filled <= 32 && (1..=most).contains(&members.len()));
                prop_assert_eq!(packs.targets(sample..sample + 1), filled as u64);
                seen.extend(members);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..inputs.len() as u32).collect::<Vec<_>>());
        }
    }
}
