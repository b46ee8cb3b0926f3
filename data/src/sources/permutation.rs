//! Orders of samples as functions: nothing is stored, and any position can be asked for.

use crate::random::word;

/// The image of `place` under the permutation of `0..count` with that key: a Feistel network of four rounds over the next
/// power of four, applied until the result is below `count` (cycle walking, Black and Rogaway, 2002).
pub(crate) fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let half = (64 - (count.max(2) - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (word(key ^ right, round) & mask));
        }
        at = left << half | right;
        if at < count {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_place_is_taken_once(count in 1u64..3000, key: u64) {
            let mut places: Vec<u64> = (0..count).map(|place| permuted(place, count, key)).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..count).collect::<Vec<_>>());
        }

        #[test]
        fn large_counts_stay_inside_and_keep_places_apart(count in 1u64 << 40..1 << 62, key: u64) {
            let places: std::collections::HashSet<u64> = (0..200).map(|place| permuted(place, count, key)).collect();
            prop_assert_eq!(places.len(), 200);
            prop_assert!(places.iter().all(|place| *place < count));
        }
    }

    #[test]
    fn other_keys_give_other_orders_with_few_places_unmoved() {
        let order = |key| (0..1000).map(|place| permuted(place, 1000, key)).collect::<Vec<_>>();
        let same = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        let identity: Vec<u64> = (0..1000).collect();
        // Two random orders share one place on average.
        for key in 0..20 {
            assert!(same(&order(key), &order(key + 1)) < 12);
            assert!(same(&order(key), &identity) < 12);
        }
    }
}
