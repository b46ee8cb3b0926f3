//! The pass of `graph_callables`: sums of gradients need not hold up the layer that computes them.

use std::collections::HashMap;
use std::rc::Rc;

use device::{Op, Tensor};

use super::{Piece, PieceEntry, StepPass, Then};
use crate::order::{Call, Pass};
use crate::side_stream::SideStream;

/// Puts what backwards add to memory of the layers' own, such as gradients of weights, on a queue of its own, which the
/// backward waits for at its end; or in the later call that an order has for it.
pub(crate) struct Sums {
    queue: Rc<SideStream>,
    /// The order has calls for them.
    later: bool,
    /// By backward.
    kept: HashMap<Call, Vec<PieceEntry>>,
}

impl Sums {
    pub(crate) fn new(queue: Rc<SideStream>, later: bool) -> Sums {
        Sums { queue, later, kept: HashMap::new() }
    }
}

/// Whether an operation adds to memory of the layer's own, on this rank alone.
fn adds(entry: &PieceEntry) -> bool {
    let accesses = entry.accesses();
    let reads = |written: &Tensor| accesses.reads.contains(written);
    let is_transfer = matches!(entry.op(), Op::Collective(_));
    entry.writes_outside() && !accesses.writes.is_empty() && accesses.writes.iter().all(reads) && !is_transfer
}

impl StepPass<Call> for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn apply(&mut self, piece: &mut Piece<Call>) {
        let call = piece.region();
        let backward = Call { pass: Pass::Backward, ..call };
        match call.pass {
            Pass::Forward => {}
            Pass::Backward => {
                // A reader may be in another piece.
                let is_whole = piece.begins() && piece.then() == Then::End;
                let is_sum = |at: usize, entries: &[PieceEntry]| {
                    let (entry, later) = (&entries[at], &entries[at + 1..]);
                    is_whole
                        && adds(entry)
                        && !later.iter().any(|later| later.queue().is_none() && later.conflicts_with(entry))
                };
                for at in (0..piece.entries.len()).rev() {
                    match is_sum(at, &piece.entries) {
                        true if self.later => self.kept.entry(call).or_default().insert(0, piece.entries.remove(at)),
                        true => {
                            piece.entries[at].put_on(&self.queue);
                            piece.joins = vec![self.queue.clone()];
                        }
                        false => {}
                    }
                }
            }
            Pass::WeightGradients => piece.entries.extend(self.kept.remove(&backward).unwrap_or_default()),
        }
    }
}
