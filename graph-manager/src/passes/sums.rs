//! The pass of `graph_callables`: sums of gradients need not hold up the layer that computes them.

use std::collections::HashMap;
use std::rc::Rc;

use device::{Op, Tensor};

use super::{Piece, PieceEntry, StepPass, Then};
use crate::call_order::{Call, Phase};
use crate::side_stream::SideStream;
use crate::training::TrainingRegion;

/// Moves operations of backwards that add to memory of the layers' own, such as gradients of weights. They go on a
/// queue of their own, and the backward waits for it at its end. If the order has later calls for them, they go there.
pub(crate) struct Sums {
    queue: Rc<SideStream>,
    /// Whether the order has calls for weight gradients.
    later: bool,
    /// By backward.
    kept: HashMap<Call, Vec<PieceEntry>>,
}

impl Sums {
    pub(crate) fn new(queue: Rc<SideStream>, later: bool) -> Sums {
        Sums { queue, later, kept: HashMap::new() }
    }

    /// Takes the sums of a backward: operations that add, and that nothing on the backward's own queue meets later.
    fn take(&mut self, call: Call, piece: &mut Piece<TrainingRegion>) {
        for at in (0..piece.entries.len()).rev() {
            let (entry, later) = (&piece.entries[at], &piece.entries[at + 1..]);
            let is_met = later.iter().any(|later| later.queue().is_none() && later.conflicts_with(entry));
            match adds(entry) && !is_met {
                true if self.later => self.kept.entry(call).or_default().insert(0, piece.entries.remove(at)),
                true => {
                    piece.entries[at].put_on(&self.queue);
                    piece.joins = vec![self.queue.clone()];
                }
                false => {}
            }
        }
    }
}

/// Whether an operation adds to memory of the layer's own, on this rank alone.
fn adds(entry: &PieceEntry) -> bool {
    let accesses = entry.accesses();
    let reads = |written: &Tensor| accesses.reads.contains(written);
    let is_transfer = matches!(entry.op(), Op::Collective(_));
    entry.writes_outside() && !accesses.writes.is_empty() && accesses.writes.iter().all(reads) && !is_transfer
}

impl StepPass<TrainingRegion> for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn apply(&mut self, piece: &mut Piece<TrainingRegion>) {
        let TrainingRegion::Layer { call, .. } = piece.region() else { return };
        match call.phase {
            // Of a backward in several pieces, another piece may read the sum.
            Phase::Backward if piece.begins() && piece.then() == Then::End => self.take(call, piece),
            Phase::Forward | Phase::Backward => {}
            Phase::WeightGradients => {
                let backward = Call { phase: Phase::Backward, ..call };
                piece.entries.extend(self.kept.remove(&backward).unwrap_or_default());
            }
        }
    }
}
