//! The findings of `--check-graphs`.

use common::format::counted;
use device::Checked;

/// The numbers of things checked, all without a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The number of graphs, and of the graphs' operations.
    pub graphs: [u64; 2],
    /// Replays with a comparison of the code and the code's graph.
    pub compared: u64,
    /// The device's own checks.
    pub checked: Checked,
}

impl Proof {
    /// The sum of all ranks' checks. `sum` adds a number over all ranks; all call it together.
    pub(crate) fn of_all_ranks(self, sum: impl Fn(u64) -> u64) -> Proof {
        let Proof { graphs, compared, checked } = self;
        let checked = Checked {
            launches: sum(checked.launches),
            eager: sum(checked.eager),
            reads: sum(checked.reads),
            pairs: sum(checked.pairs),
        };
        Proof { graphs: graphs.map(&sum), compared: sum(compared), checked }
    }

    /// The proof of so many ranks, in words.
    pub fn words(&self, ranks: usize) -> String {
        let Proof { graphs: [graphs, nodes], compared, checked } = *self;
        let number = |number: u64, noun| counted(number as usize, noun);
        let replays = match compared {
            0 => String::new(),
            _ => format!(". {}: the code did what the graph does", number(compared, "replay")),
        };
        format!(
            "checked on {}: {} of {} in {}, and {} outside of graphs. {} of operations that use the same bytes, one of \
             them to write: each has an order, so none race. {}: each found the values of the buffer that it names{replays}",
            counted(ranks, "rank"),
            number(graphs, "graph"),
            number(nodes, "operation"),
            number(checked.launches, "launch"),
            number(checked.eager, "operation"),
            number(checked.pairs, "pair"),
            number(checked.reads, "read"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_of_all_ranks_is_the_sum_of_theirs() {
        let checked = Checked { launches: 24, eager: 30, reads: 400, pairs: 500 };
        let proof = Proof { graphs: [2, 35], compared: 8, checked }.of_all_ranks(|number| 2 * number);
        assert_eq!(
            proof.words(2),
            "checked on 2 ranks: 4 graphs of 70 operations in 48 launches, and 60 operations outside of graphs. 1000 pairs of \
             operations that use the same bytes, one of them to write: each has an order, so none race. 800 reads: each found \
             the values of the buffer that it names. 16 replays: the code did what the graph does"
        );
    }
}
