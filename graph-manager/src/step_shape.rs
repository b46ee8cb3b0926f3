//! What steps are made of.

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

    /// Chunks of layers.
    pub(crate) fn chunk_count(&self) -> usize {
        self.chunks.len().max(1)
    }
}
