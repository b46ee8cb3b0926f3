//! How a manager captures.

/// What is captured as one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each layer's forward and backward, per microbatch or slot.
    PerLayer,
    /// All microbatches' forwards and backwards in one.
    FullIteration,
}

/// How memory is shared between microbatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mempool {
    /// One plan over the whole step: least memory, a graph per microbatch, anew for each number of microbatches.
    Single,
    /// What a microbatch keeps lies in its slot: a graph per slot, any number of microbatches.
    PerMicrobatch,
}

/// A manager's settings.
#[derive(Clone, Debug)]
pub struct GraphOptions {
    /// Capture at all; off runs the same work in the same memory, submitted anew each step.
    pub enable: bool,
    /// What is one graph.
    pub scope: Scope,
    /// How memory is shared.
    pub mempool: Mempool,
    /// Neighbouring regions share boundary buffers. Off: each region copies its inputs into buffers of its own before it
    /// is launched, so that other work may stand between layers and hand over tensors at changing addresses.
    pub share_io_buffers: bool,
    /// The optimizer is captured too: in the iteration's graph, or in one of its own.
    pub capture_optimizer: bool,
    /// Eager steps before the first capture; at least 1.
    pub warmup_steps: usize,
    /// Overwrite buffers with poison after their last use, so that a stray read shows in the numbers.
    pub poison: bool,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions {
            enable: true,
            scope: Scope::PerLayer,
            mempool: Mempool::PerMicrobatch,
            share_io_buffers: true,
            capture_optimizer: true,
            warmup_steps: 1,
            poison: false,
        }
    }
}

impl GraphOptions {
    /// Whether buffers that live beyond a region lie in slots rather than in one plan over the step.
    pub(crate) fn slots(&self) -> bool {
        self.mempool == Mempool::PerMicrobatch && (self.scope == Scope::PerLayer || !self.enable)
    }
}
