//! Gradients of weights: no other layer waits for them.
//!
//! They have a queue of their own, next to the other operations of a backward. The backward waits for them at its end.
//! If backwards are split (zero bubble), they go to regions of their own instead, later in the step.
//!
//! Order that it removes: the operations of a region after a weight gradient do not wait for it before the region's
//! end. In an MLP the layers before do not wait either; only the first layer's backward does.

use std::collections::HashMap;
use std::rc::Rc;

use device::{Accesses, BufferId, Op};
use graph_manager::{Phase, Piece, PieceEntry, SideStream, StepPass, Then};

use super::name::PassName;
use crate::regions::Region;

/// The pass, with the work that the pass has kept and put on the queue in a step.
pub(crate) struct WeightGradients {
    queue: Rc<SideStream>,
    /// The memory of `main_grad`.
    gradients: BufferId,
    /// Backwards are split.
    splits: bool,
    /// Weight gradients may be computed next to the backwards of earlier layers, which come later in backward.
    outlive: bool,
    /// By backward region: gradients that a later region computes.
    kept: HashMap<Region, Vec<PieceEntry>>,
    /// The queue was given operations that nothing has waited for.
    under_way: bool,
    /// The operations under way belong to a region that has ended.
    outlived: bool,
}

impl WeightGradients {
    /// For parameters with gradients in that buffer.
    pub(crate) fn new(queue: &Rc<SideStream>, gradients: BufferId, splits: bool, outlive: bool) -> WeightGradients {
        let queue = queue.clone();
        WeightGradients { queue, gradients, splits, outlive, kept: HashMap::new(), under_way: false, outlived: false }
    }

    /// Whether an operation is for this pass: it computes only gradients of parameters, or in a backward adds up
    /// losses.
    fn is_one(&self, region: Region, entry: &PieceEntry) -> bool {
        match entry.op() {
            Op::Gemm(_) | Op::GroupedGemm(_) | Op::BiasGrad(_) => {
                entry.accesses().writes.iter().all(|tensor| tensor.buffer == self.gradients)
            }
            Op::SumInto(_) => region.is_backward() && entry.writes_outside(),
            _ => false,
        }
    }

    /// Puts weight gradients on the queue, or keeps the weight gradients of a split backward. One stays in its place if
    /// its factors are overwritten later in the piece. A bias's sum stays if nothing comes after it: it runs beside the
    /// product before it.
    fn take(&mut self, piece: &mut Piece<Region>) {
        let region = piece.region();
        let keeps = self.splits && region.is_backward();
        let mut kept = Vec::new();
        let mut at = 0;
        while at < piece.entries.len() {
            let (entry, later) = (&piece.entries[at], &piece.entries[at + 1..]);
            let is_last_sum = matches!(entry.op(), Op::BiasGrad(_)) && later.is_empty();
            let stays = is_last_sum
                || !self.is_one(region, entry)
                || later.iter().any(|later| overwrites_factors(later, entry));
            if stays {
                at += 1;
            } else if keeps && !matches!(entry.op(), Op::SumInto(_)) {
                kept.push(piece.entries.remove(at));
            } else {
                piece.entries[at].put_on(&self.queue);
                (self.under_way, self.outlived) = (true, false);
                at += 1;
            }
        }
        if !kept.is_empty() {
            self.kept.entry(region).or_default().append(&mut kept);
        }
    }

    /// Whether a region's operations on the queue may go on past the region's end. The first layer's backward is a
    /// microbatch's last and waits for all.
    fn outlives(&self, region: Region) -> bool {
        self.outlive && matches!(region, Region::Backward { layer, .. } if layer > 0)
    }
}

/// Whether an operation writes a tensor that a product reads, other than the product's result.
fn overwrites_factors(later: &PieceEntry, product: &PieceEntry) -> bool {
    let of = product.accesses();
    let factors = of.reads.iter().filter(|read| !of.writes.contains(read)).copied();
    later.accesses().conflicts(&Accesses::new(factors, []))
}

/// The backward that a region of weight gradients belongs to.
fn backward_of(region: Region) -> Option<Region> {
    match region {
        Region::WeightGradients { layer, microbatch } => Some(Region::Backward { layer, microbatch }),
        Region::Module { module, phase: Phase::WeightGradients, layer, microbatch } => {
            Some(Region::Module { module, phase: Phase::Backward, layer, microbatch })
        }
        _ => None,
    }
}

impl StepPass<Region> for WeightGradients {
    fn name(&self) -> &'static str {
        PassName::WeightGradients.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        let region = piece.region();
        match backward_of(region) {
            Some(backward) if piece.then() == Then::End => {
                let kept = self.kept.remove(&backward).unwrap_or_default();
                piece.entries.splice(0..0, kept);
            }
            Some(_) => {}
            None => self.take(piece),
        }
        let waits = match piece.then() {
            Then::Inner => !self.outlived,
            Then::More => false,
            Then::End => !self.outlives(region),
        };
        if self.under_way && waits {
            piece.joins.push(self.queue.clone());
            self.under_way = false;
        }
        self.outlived = self.under_way && (self.outlived || piece.then() == Then::End);
    }
}
