//! What steps are made of.

use crate::{Mode, Region};

/// What a region does in some microbatches and not in others, so that it has a graph for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Variant {
    /// The first microbatch's forward gathers weights.
    pub(crate) gathers: bool,
    /// The last region to add to its layer's gradients reduces them.
    pub(crate) reduces: bool,
    /// The only microbatch overwrites gradients instead of adding to them.
    pub(crate) overwrites: bool,
}

/// What a manager has to know of the steps it will run; the layers of one rank, nothing that a user sets.
#[derive(Clone, Debug, Default)]
pub struct StepShape {
    /// The first layer of each chunk of layers that a microbatch goes through at once: microbatches are in flight, and
    /// have slots, by chunk. Empty where there is only one.
    pub chunks: Vec<usize>,
    /// Backwards put off the gradients of weights to regions of their own, [`crate::Region::Weights`]; these then complete
    /// a layer's gradients.
    pub splits_backward: bool,
    /// The last microbatch's regions that complete gradients reduce them, so they have graphs of their own.
    pub reduces: bool,
    /// The first microbatch's forward regions gather weights, so they have graphs of their own.
    pub gathers: bool,
}

impl StepShape {
    /// The chunk a layer belongs to.
    pub(crate) fn chunk_of(&self, layer: usize) -> usize {
        self.chunks.iter().rposition(|first| *first <= layer).unwrap_or(0)
    }

    /// What a region does in a step of so many microbatches and not in every one.
    pub(crate) fn variant(&self, mode: Mode, region: Region, microbatches: usize) -> Variant {
        let completes = match region {
            Region::Backward { .. } => !self.splits_backward,
            Region::Weights { .. } => true,
            _ => false,
        };
        let forward = matches!(region, Region::Forward { .. });
        Variant {
            gathers: self.gathers && forward && region.microbatch() == Some(0),
            reduces: self.reduces && completes && region.microbatch() == Some(microbatches - 1) && mode == Mode::Train,
            overwrites: mode == Mode::Train && microbatches == 1,
        }
    }

    /// Chunks of layers.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len().max(1)
    }
}
