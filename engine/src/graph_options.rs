//! How a rank's steps are captured.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use common::choice;
use graph_manager::{ManagerOptions, Mempool};

/// What is captured as one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each layer's forward and backward, per microbatch or slot.
    PerLayer,
    /// All microbatches' forwards and backwards in one.
    FullIteration,
}

choice! {
    /// A module of a model that graphs can be limited to.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum GraphModule {
        /// The first layer.
        Embedding = "embedding",
        /// A block's attention, with the norm before it.
        Attention = "attention",
        /// A block's feed-forward layer, with the norm before it.
        FeedForward = "mlp",
        /// The last layer.
        Head = "head",
    }
}

/// Which parts of the layers become graphs under [`Scope::PerLayer`]. What is not chosen runs eagerly. With both sets, what
/// both choose becomes a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSelection {
    /// Only these modules; empty for all. A block of which every module is chosen is one graph. Of other blocks each chosen
    /// module is a graph.
    pub modules: BTreeSet<GraphModule>,
    /// Only these layers, counted over the whole model as in [`Region`](crate::regions::Region); empty for all.
    pub layers: BTreeSet<usize>,
}

impl GraphSelection {
    /// Whether all layers become graphs.
    pub fn is_everything(&self) -> bool {
        self.modules.is_empty() && self.layers.is_empty()
    }
}

/// The settings of a rank's graphs.
#[derive(Clone, Debug)]
pub struct GraphOptions {
    /// Whether to capture at all; see [`ManagerOptions::enable`].
    pub enable: bool,
    /// What is one graph.
    pub scope: Scope,
    /// Which parts of the layers become graphs. Under [`Scope::FullIteration`] it must be everything.
    pub only: GraphSelection,
    /// How memory is shared. The graph of a full iteration always has one plan over the whole step.
    pub mempool: Mempool,
    /// Neighbouring regions share boundary buffers; see [`ManagerOptions::share_io_buffers`].
    pub share_io_buffers: bool,
    /// The optimizer is captured too: in the iteration's graph, or in one of its own.
    pub capture_optimizer: bool,
    /// Eager steps before the first capture; at least 1.
    pub warmup_steps: usize,
    /// Overwrite buffers with poison after their last use.
    pub poison: bool,
    /// Compare the code of replayed regions with their graphs; see [`ManagerOptions::check_replays`].
    pub check_replays: bool,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        let manager = ManagerOptions::default();
        GraphOptions {
            enable: manager.enable,
            scope: Scope::PerLayer,
            only: GraphSelection::default(),
            mempool: manager.mempool,
            share_io_buffers: manager.share_io_buffers,
            capture_optimizer: true,
            warmup_steps: manager.warmup_steps,
            poison: manager.poison,
            check_replays: manager.check_replays,
        }
    }
}

impl GraphOptions {
    /// What the manager is told.
    pub(crate) fn manager_options(&self) -> ManagerOptions {
        let per_layer = self.scope == Scope::PerLayer || !self.enable;
        ManagerOptions {
            enable: self.enable,
            mempool: if per_layer { self.mempool } else { Mempool::Single },
            share_io_buffers: self.share_io_buffers,
            warmup_steps: self.warmup_steps,
            poison: self.poison,
            check_replays: self.check_replays,
            // Every kind of step that a run meets is recorded before its first step.
            plan_limit: NonZeroUsize::MAX,
        }
    }
}
