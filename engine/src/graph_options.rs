//! How a rank's steps are captured.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::num::NonZeroUsize;

use device::CaptureMode;
use graph_manager::{CheckReplays, ManagerOptions, Mempool};

/// How much of a step one graph contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each layer's forward and backward, per microbatch or slot.
    PerLayer,
    /// The forward and the backward of each chunk of layers, per microbatch or slot. A rank has one chunk, or several
    /// virtual stages.
    PerChunk,
    /// All microbatches' forwards and backwards in one.
    FullIteration,
}

impl Scope {
    /// From the smallest graphs to the largest.
    pub const ALL: [Scope; 3] = [Scope::PerLayer, Scope::PerChunk, Scope::FullIteration];

    /// Whether a step has several graphs, which microbatches share.
    pub(crate) fn is_part(self) -> bool {
        self != Scope::FullIteration
    }
}

/// A module of a model that graphs can be limited to: the first layer, the last, or a kind of part of blocks with its norms.
/// The field is the word that users write. `model/gpt/block.rs` has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphModule(pub(crate) &'static str);

impl Display for GraphModule {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl GraphModule {
    /// The module of a word.
    pub fn of(word: &str) -> Option<GraphModule> {
        GraphModule::WORDS.iter().find(|known| **known == word).map(|known| GraphModule(known))
    }
}

/// The parts of layers that become graphs under [`Scope::PerLayer`]. All other parts run eagerly. If both sets are
/// given, a part becomes a graph only if both choose it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSelection {
    /// The only modules that become graphs; empty for all. If all modules of a block are chosen, the block is one
    /// graph. Otherwise each chosen module is a graph. [`GraphModule::ROUTER`] is the first half of
    /// [`GraphModule::EXPERTS`], so only one of the two is chosen. [`GraphModule::ROW_ORDER`] adds to the first, and is
    /// no graph of its own.
    pub modules: BTreeSet<GraphModule>,
    /// The only layers that become graphs, counted over the whole model as in [`Region`](crate::regions::Region); empty
    /// for all.
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
    /// How much of a step one graph contains.
    pub scope: Scope,
    /// The parts of layers that become graphs. It must be everything unless the scope is [`Scope::PerLayer`].
    pub only: GraphSelection,
    /// How memory is shared. The graph of a full iteration always has one plan over the whole step.
    pub mempool: Mempool,
    /// Neighbouring regions share boundary buffers; see [`ManagerOptions::share_io_buffers`].
    pub share_io_buffers: bool,
    /// The optimizer is captured too: in the iteration's graph, or in one of its own.
    pub capture_optimizer: bool,
    /// Eager steps before the first capture; at least 1.
    pub warmup_steps: usize,
    /// Whether buffers are overwritten with poison after the last use.
    pub poison: bool,
    /// Whether the code of a step is called again before each step with graphs, to compare the step's list; see
    /// [`CheckReplays::Always`]. If not, it is never called again: the list of a large model takes seconds.
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
            check_replays: false,
        }
    }
}

impl GraphOptions {
    /// The manager's options that follow from the settings of graphs.
    pub(crate) fn manager_options(&self) -> ManagerOptions {
        let whole = self.enable && self.scope == Scope::FullIteration;
        ManagerOptions {
            enable: self.enable,
            mempool: if whole { Mempool::Single } else { self.mempool },
            share_io_buffers: self.share_io_buffers,
            warmup_steps: self.warmup_steps,
            poison: self.poison,
            check_replays: if self.check_replays { CheckReplays::Always } else { CheckReplays::Never },
            // Every kind of step that a run meets is recorded before its first step.
            plan_limit: NonZeroUsize::MAX,
            // Threads that read data and write checkpoints work during captures.
            capture_mode: CaptureMode::ThreadLocal,
        }
    }
}
