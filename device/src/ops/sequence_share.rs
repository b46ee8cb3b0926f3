//! The share of a sequence that one of several ranks has.

/// A rank's share of a sequence that ranks divide. The sequence has twice as many equal parts as there are ranks. A rank
/// has one part from its beginning and the mirrored one from its end, so that in causal attention all ranks have equally
/// many pairs of a query and a key. The default is the whole sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceShare {
    /// The rank, counted from 0.
    pub rank: usize,
    /// The ranks that divide the sequence.
    pub ranks: usize,
}

/// The keys of a rank that the queries of another rank see: the first `keys`, by all queries from `first_query` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeysOfRank {
    /// The first query that sees the keys; earlier queries of a sample see none.
    pub first_query: usize,
    /// Keys of a sample.
    pub keys: usize,
}

impl Default for SequenceShare {
    fn default() -> SequenceShare {
        SequenceShare::WHOLE
    }
}

impl SequenceShare {
    /// One rank has all of the sequence.
    pub const WHOLE: SequenceShare = SequenceShare { rank: 0, ranks: 1 };

    /// The number of `tokens` here that are in the first part; all if the sequence is whole.
    pub fn first_part(self, tokens: usize) -> usize {
        if self.ranks == 1 { tokens } else { tokens / 2 }
    }

    /// The positions in the sequence at which the two parts begin, if `tokens` are here.
    pub fn begins(self, tokens: usize) -> [usize; 2] {
        let part = self.first_part(tokens);
        [self.rank * part, (2 * self.ranks - 1 - self.rank) * part]
    }

    /// The position in the sequence of a token, counted among the `tokens` here.
    pub fn position(self, token: usize, tokens: usize) -> usize {
        let part = self.first_part(tokens);
        let [first, second] = self.begins(tokens);
        if token < part { first + token } else { second + token - part }
    }

    /// What the `tokens` queries here see of another rank's keys, in causal attention. That rank has a part before this
    /// one's first, and its other part after all of them; or both of its parts lie between this rank's.
    pub fn sees_of(self, rank: usize, tokens: usize) -> KeysOfRank {
        match rank < self.rank {
            true => KeysOfRank { first_query: 0, keys: tokens / 2 },
            false => KeysOfRank { first_query: tokens / 2, keys: tokens },
        }
    }

    /// The share as kernels take it: the tokens of the first part, and what is added to the number of a token in either
    /// part to get its position.
    pub(crate) fn shifts(self, tokens: usize) -> [u32; 3] {
        let part = self.first_part(tokens);
        let [first, second] = self.begins(tokens);
        [part, first, second - part].map(|tokens| tokens as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_a_part_and_its_mirror_and_together_every_token_once() {
        let positions = |rank, ranks, tokens| -> Vec<usize> {
            let share = SequenceShare { rank, ranks };
            let [part, first, second] = share.shifts(tokens).map(|number| number as usize);
            let shifted = (0..tokens).map(|token| token + if token < part { first } else { second });
            let positions: Vec<usize> = (0..tokens).map(|token| share.position(token, tokens)).collect();
            assert_eq!(positions, shifted.collect::<Vec<_>>());
            positions
        };
        assert_eq!(positions(0, 1, 5), [0, 1, 2, 3, 4]);
        assert_eq!(positions(0, 2, 4), [0, 1, 6, 7]);
        assert_eq!(positions(1, 2, 4), [2, 3, 4, 5]);
        for (rank, other) in [(0, 3), (2, 1), (1, 2), (3, 0)] {
            let [queries, keys] = [rank, other].map(|rank| positions(rank, 4, 6));
            let KeysOfRank { first_query, keys: count } = SequenceShare { rank, ranks: 4 }.sees_of(other, 6);
            for (at, query) in queries.iter().enumerate() {
                let seen = if at < first_query { &[] } else { &keys[..count] };
                assert_eq!(seen, keys.iter().copied().filter(|key| key < query).collect::<Vec<_>>());
            }
        }
        let mut all: Vec<usize> = (0..4).flat_map(|rank| positions(rank, 4, 6)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..24).collect::<Vec<_>>());
    }
}
