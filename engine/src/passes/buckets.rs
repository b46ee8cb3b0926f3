//! Buckets of gradients are summed, and buckets of weights gathered, next to the work of layers.
//!
//! The code sums all buckets after the last backward. The pass begins a bucket's sum with the next backward after the
//! bucket is complete; the last bucket has no such backward. The code gathers a layer's weights in its first forward.
//! The pass begins the gather with the forward of the layer before. If neither layers nor chunks have graphs of their
//! own and buckets share no memory, it begins all gathers with the step: then a stage of a pipeline has its weights
//! before its first input comes.
//!
//! These transfers have a queue of their own, one after the other. If layers or chunks have graphs of their own, a graph
//! waits at its end for the transfers that began in it: no work may go on past the end of a graph.
//!
//! Order that it removes: layers do not wait for the sums of others' buckets, nor for gathers of others' weights.

use std::collections::HashMap;
use std::rc::Rc;

use device::{Communicator, Op};
use graph_manager::{Phase, Piece, PieceEntry, SideStream, StepPass, Then};

use super::name::PassName;
use crate::gradient_sync::GradientSync;
use crate::graph_options::Scope;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// The pass, with what it has begun in a step.
pub(crate) struct Buckets {
    queue: Rc<SideStream>,
    /// The layers of this rank, in the order of forward.
    layers: Vec<usize>,
    /// By layer: operations that gather the weights that its forward is the first to read.
    gathers: HashMap<usize, Vec<Op>>,
    /// By layer: operations that sum the gradients that its backward completes.
    sums: HashMap<usize, Vec<Op>>,
    /// Operations that sum the gradients that the last backward completes.
    last: Vec<Op>,
    /// Of the ranks with other tokens.
    communicators: Vec<Rc<dyn Communicator>>,
    /// The regions that complete gradients: of this kind, and of the last microbatch.
    completing: (Phase, usize),
    /// What one graph contains.
    graphs: Option<Scope>,
    /// All gathers begin with the step.
    gathers_ahead: bool,
    /// Operations that have begun and that the code has not submitted yet.
    begun: Vec<Op>,
    /// The next region to end, of those that become graphs, waits for the transfers that began in it.
    ends_soon: bool,
}

impl Buckets {
    /// For a step. Its gradients are complete after the regions of the kind `completing` of the last microbatch.
    pub(crate) fn new(
        queue: &Rc<SideStream>,
        cx: &StepContext<'_>,
        gradients: &GradientSync,
        completing: Phase,
    ) -> Buckets {
        let layers = gradients.layers().to_vec();
        let graphs = cx.policy().graphs();
        Buckets {
            queue: queue.clone(),
            gathers: layers.iter().skip(1).map(|&layer| (layer, gradients.gather(cx, layer))).collect(),
            sums: layers.iter().skip(1).map(|&layer| (layer, gradients.reduce(layer))).collect(),
            last: layers.first().map_or_else(Vec::new, |first| gradients.reduce(*first)),
            communicators: gradients.communicators(),
            layers,
            completing: (completing, cx.microbatches() - 1),
            graphs,
            gathers_ahead: !gradients.shares_buffers() && !graphs.is_some_and(Scope::is_part),
            begun: Vec::new(),
            ends_soon: false,
        }
    }

    /// The layer of this rank that comes after `layer` in forward, and so before it in backward.
    fn after(&self, layer: usize) -> Option<usize> {
        let at = self.layers.iter().position(|&here| here == layer)?;
        self.layers.get(at + 1).copied()
    }

    /// The transfers that begin with a region, and whether they end with it or with the chunk that it is in.
    fn beginning(&mut self, region: Region) -> (Vec<Op>, bool) {
        let (phase, last) = self.completing;
        let sums_after = match region {
            // The first region of a layer comes after the step's beginning.
            region if self.gathers_ahead && !self.gathers.is_empty() && region.layer_and_microbatch().is_some() => {
                let gathers = &mut self.gathers;
                return (self.layers.iter().filter_map(|layer| gathers.remove(layer)).flatten().collect(), false);
            }
            Region::Forward { layer, microbatch: 0 } => {
                let next = self.after(layer).and_then(|next| self.gathers.remove(&next));
                return (next.unwrap_or_default(), true);
            }
            Region::Backward { layer, microbatch } if (Phase::Backward, microbatch) == (phase, last) => layer,
            Region::WeightGradients { layer, microbatch } if (Phase::WeightGradients, microbatch) == (phase, last) => {
                layer
            }
            _ => return (Vec::new(), false),
        };
        let completed = self.after(sums_after).and_then(|layer| self.sums.remove(&layer));
        (completed.unwrap_or_default(), self.graphs.is_some_and(Scope::is_part))
    }

    /// Whether the end of a region waits for transfers that began in it.
    fn ends(&self, region: Region) -> bool {
        match region {
            Region::Chunk { .. } => true,
            Region::Forward { .. } | Region::Backward { .. } | Region::WeightGradients { .. } => {
                self.graphs != Some(Scope::PerChunk)
            }
            _ => false,
        }
    }
}

impl StepPass<Region> for Buckets {
    fn name(&self) -> &'static str {
        PassName::Buckets.words()
    }

    fn apply(&mut self, piece: &mut Piece<Region>) {
        if !self.begun.is_empty() {
            let begun = &mut self.begun;
            piece.entries.retain(|entry| match begun.iter().position(|op| op == entry.op()) {
                Some(at) => {
                    begun.remove(at);
                    false
                }
                None => true,
            });
        }
        if piece.begins() {
            let (ops, ends_here) = self.beginning(piece.region());
            self.ends_soon |= ends_here && !ops.is_empty();
            self.begun.extend(ops.iter().cloned());
            let ahead = ops.into_iter().map(|op| {
                let mut entry = PieceEntry::ahead(op);
                entry.put_on(&self.queue);
                entry
            });
            piece.entries.splice(0..0, ahead);
        }
        if piece.region() == Region::Reduce {
            for entry in &mut piece.entries {
                let sums = self.communicators.iter().any(|group| entry.is_transfer_of(group));
                if sums || self.last.contains(entry.op()) {
                    entry.put_on(&self.queue);
                }
            }
            piece.joins.push(self.queue.clone());
        }
        if self.ends_soon && piece.then() == Then::End && self.ends(piece.region()) {
            piece.joins.push(self.queue.clone());
            self.ends_soon = false;
        }
    }
}
