//! What `--check-graphs` proved.

use common::format::counted;
use device::Checked;

/// What was checked on all ranks, with nothing found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// What the devices checked.
    pub checked: Checked,
    /// Replays whose code was compared with their graphs.
    pub compared: u64,
    /// Ranks.
    pub ranks: usize,
}

impl Proof {
    /// The sum of what each rank has checked. `sum` adds a number over all ranks; all call it together.
    pub(crate) fn of_all_ranks(here: Checked, compared: u64, ranks: usize, sum: impl Fn(u64) -> u64) -> Proof {
        let checked = Checked {
            captures: sum(here.captures - compared),
            captured: sum(here.captured),
            launches: sum(here.launches),
            eager: sum(here.eager),
            reads: sum(here.reads),
            pairs: sum(here.pairs),
        };
        Proof { checked, compared: sum(compared), ranks }
    }

    /// The proof in words.
    pub fn words(&self) -> String {
        let Proof { checked, compared, ranks } = *self;
        let number = |number: u64, noun| counted(number as usize, noun);
        let replays = match compared {
            0 => String::new(),
            _ => format!(". {}: the code did what the graph does", number(compared, "replay")),
        };
        format!(
            "checked on {}: {} in {}, and {} in and outside of them. {} of operations that use the same bytes, \
             one of them to write: each has an order, so none race. {}: each found the values of the buffer that it names{replays}",
            counted(ranks, "rank"),
            number(checked.captures, "graph"),
            number(checked.launches, "launch"),
            number(checked.captured + checked.eager, "operation"),
            number(checked.pairs, "pair"),
            number(checked.reads, "read"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_of_all_ranks_counts_each_graph_once_though_replays_capture_it_again() {
        let here = Checked { captures: 10, captured: 70, launches: 24, eager: 30, reads: 400, pairs: 500 };
        let proof = Proof::of_all_ranks(here, 8, 2, |number| 2 * number);
        assert_eq!(
            proof.words(),
            "checked on 2 ranks: 4 graphs in 48 launches, and 200 operations in and outside of them. 1000 pairs of operations \
             that use the same bytes, one of them to write: each has an order, so none race. 800 reads: each found the values \
             of the buffer that it names. 16 replays: the code did what the graph does"
        );
    }
}
