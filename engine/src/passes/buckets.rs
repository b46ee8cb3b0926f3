//! Buckets of gradients are summed, and buckets of weights gathered, next to the work of layers.
//!
//! The code sums all buckets after the last backward. The pass begins a bucket's sum with the next backward after the
//! bucket is complete; the last bucket has no such backward. If ranks divide gradients, the code itself sums a layer's
//! gradients at the beginning of the backward after; the pass puts these sums on the queue.
//!
//! The code gathers a layer's weights in its first forward, and divided ones in each forward and each backward. The
//! pass begins the gather with the layer that runs before in the same chunk. A chunk's first one is on the queue too. The
//! values of frozen weights that lie as codes are made as divided weights are gathered.
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
use crate::gradient_sync::{GradientSync, Summand, Use};
use crate::graph_options::Scope;
use crate::regions::Region;
use crate::step_policy::StepContext;

/// The pass, with the operations that the pass has begun in a step.
pub(crate) struct Buckets {
    queue: Rc<SideStream>,
    /// The layers of this rank, in the order of forward.
    layers: Vec<usize>,
    /// By layer: the layers beside it, and operations that gather the weights that it is the first to read.
    gathers: HashMap<usize, Gathers>,
    /// By layer: operations that sum the gradients that its backward completes.
    sums: HashMap<usize, Vec<Op>>,
    /// If ranks divide gradients, by layer: all operations that sum its gradients in some microbatch.
    divided_sums: HashMap<usize, Vec<Op>>,
    /// Operations that sum the gradients that the last backward completes.
    last: Vec<Op>,
    /// Of the ranks with other tokens.
    communicators: Vec<Rc<dyn Communicator>>,
    /// The regions that complete gradients: of this kind, and of the last microbatch.
    completing: (Phase, usize),
    /// What one graph contains.
    graphs: Option<Scope>,
    /// Operations that have begun and that the code has not submitted yet.
    begun: Vec<Op>,
    /// Whether the next region to end, of all regions that become graphs, waits for the transfers that began in the
    /// region.
    ends_soon: bool,
}

/// The gathers of a layer.
struct Gathers {
    /// The neighbouring layers in the same chunk, before and after.
    before: Option<usize>,
    after: Option<usize>,
    /// For the first forward of the step.
    first: Vec<Op>,
    /// For later forwards.
    later: Vec<Op>,
    /// For backwards.
    backward: Vec<Op>,
}

impl Buckets {
    /// For a step. Its gradients are complete after the regions of the kind `completing` of the last microbatch.
    pub(crate) fn new(
        queue: &Rc<SideStream>,
        cx: &StepContext<'_>,
        gradients: &GradientSync,
        completing: Phase,
    ) -> Buckets {
        let layers = gradients.layers();
        let graphs = cx.policy().graphs();
        let of = |&layer: &usize| {
            let uses = [Use::First, Use::Later, Use::Backward];
            let [first, later, backward] = uses.map(|used| gradients.gather(cx, layer, used));
            let (before, after) = (gradients.before_in_chunk(layer), gradients.after_in_chunk(layer));
            (layer, Gathers { before, after, first, later, backward })
        };
        let divides = gradients.divides();
        let all_sums = |layer: usize| -> Vec<Op> {
            let scatters =
                [Summand::First, Summand::Later].into_iter().flat_map(|summand| gradients.scatter(layer, summand));
            scatters.chain(gradients.reduce(layer)).collect()
        };
        Buckets {
            queue: queue.clone(),
            gathers: layers.iter().map(of).collect(),
            sums: layers.iter().skip(1).filter(|_| !divides).map(|&layer| (layer, gradients.reduce(layer))).collect(),
            divided_sums: layers.iter().filter(|_| divides).map(|&layer| (layer, all_sums(layer))).collect(),
            last: gradients.first_layer().map_or_else(Vec::new, all_sums),
            communicators: gradients.communicators(),
            layers,
            completing: (completing, cx.microbatches() - 1),
            graphs,
            begun: Vec::new(),
            ends_soon: false,
        }
    }

    /// The layer of this rank that comes after `layer` in forward, and so before `layer` in backward.
    fn after(&self, layer: usize) -> Option<usize> {
        let at = self.layers.iter().position(|&here| here == layer)?;
        self.layers.get(at + 1).copied()
    }

    /// The sums of buckets that begin with a region.
    fn sums_after(&mut self, region: Region) -> Vec<Op> {
        let (phase, last) = self.completing;
        let layer = match region {
            Region::Backward { layer, microbatch } if (Phase::Backward, microbatch) == (phase, last) => layer,
            Region::WeightGradients { layer, microbatch } if (Phase::WeightGradients, microbatch) == (phase, last) => {
                layer
            }
            _ => return Vec::new(),
        };
        self.after(layer).and_then(|layer| self.sums.remove(&layer)).unwrap_or_default()
    }

    /// The operations that gather the weights of the layer that runs after a region.
    fn gathers_of_next(&self, region: Region) -> &[Op] {
        match region {
            Region::Forward { layer, microbatch } => {
                let after = self.gathers.get(&layer).and_then(|of| of.after);
                after.map_or(&[], |layer| self.gathers_of(Region::Forward { layer, microbatch }))
            }
            Region::Backward { layer, microbatch } => {
                let before = self.gathers.get(&layer).and_then(|of| of.before);
                before.map_or(&[], |layer| self.gathers_of(Region::Backward { layer, microbatch }))
            }
            _ => &[],
        }
    }

    /// The operations that gather the weights of a region's layer.
    fn gathers_of(&self, region: Region) -> &[Op] {
        let of = |layer| self.gathers.get(&layer);
        match region {
            Region::Forward { layer, microbatch: 0 } => of(layer).map_or(&[], |of| &of.first),
            Region::Forward { layer, .. } => of(layer).map_or(&[], |of| &of.later),
            Region::Backward { layer, .. } => of(layer).map_or(&[], |of| &of.backward),
            _ => &[],
        }
    }

    /// Puts gathers that no layer before has begun on the queue, and the sums of divided gradients. Returns the place
    /// in the piece after those at its region's beginning.
    fn put_on_queue(&mut self, piece: &mut Piece<Region>) -> usize {
        let region = piece.region();
        let (layer, after) = match region {
            Region::Forward { layer, .. } => (Some(layer), None),
            Region::Backward { layer, .. } => (Some(layer), self.gathers.get(&layer).and_then(|of| of.after)),
            _ => return 0,
        };
        let sums_of =
            |layer: Option<usize>| layer.and_then(|layer| self.divided_sums.get(&layer)).map_or(&[][..], |of| of);
        let (gathers, of_after, own) = (self.gathers_of(region), sums_of(after), sums_of(layer));
        let (mut end, mut any) = (0, false);
        for (at, entry) in piece.entries.iter_mut().enumerate() {
            let begins = gathers.contains(entry.op()) || of_after.contains(entry.op());
            if begins || own.contains(entry.op()) {
                entry.put_on(&self.queue);
                any = true;
                end = if begins { at + 1 } else { end };
            }
        }
        self.ends_soon |= any && self.graphs.is_some_and(Scope::is_part);
        end
    }

    /// Whether the end of a region waits for transfers that began in the region.
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
        let end = self.put_on_queue(piece);
        if piece.begins() {
            let (sums, mut ops) = (self.sums_after(piece.region()), self.gathers_of_next(piece.region()).to_vec());
            self.ends_soon |= !ops.is_empty() || (!sums.is_empty() && self.graphs.is_some_and(Scope::is_part));
            ops.extend(sums);
            self.begun.extend(ops.iter().cloned());
            let ahead = ops.into_iter().map(|op| {
                let mut entry = PieceEntry::ahead(op);
                entry.put_on(&self.queue);
                entry
            });
            piece.entries.splice(end..end, ahead);
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
