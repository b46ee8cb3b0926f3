//! The regions of a step.

use graph_manager::Phase;

use crate::graph_options::GraphModule;
use crate::hooks::HookPlace;

/// The purpose of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Forward, backward, update.
    Train,
    /// As training, to the same bits; also counts the values that 8-bit copies lose.
    Measure,
    /// Forward only, without dropout.
    Evaluate,
    /// As [`Mode::Evaluate`], without the adapters of layers: a step's pairs under the model that it was.
    Reference,
    /// As [`Mode::Evaluate`], of prompts with the answers of others.
    Mismatched,
    /// Forward of a whole prompt. It fills a cache.
    Prefill,
    /// Forward of one more token, over a cache.
    Decode,
}

impl Mode {
    /// Whether steps of this mode have a backward and an update.
    pub fn trains(self) -> bool {
        matches!(self, Mode::Train | Mode::Measure)
    }

    /// Whether layers add the adapters' outputs.
    pub(crate) fn adapts(self) -> bool {
        self != Mode::Reference
    }
}

/// A kind of step with a separate list, plan and graphs: its purpose, and the length of its samples.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepKind {
    /// The purpose.
    pub mode: Mode,
    /// Tokens of a sample, for one of the [shorter lengths](crate::step::StageOptions::shorter_lengths).
    pub length: Option<usize>,
    /// The room for the rows of experts.
    pub room: Room,
}

/// The room for the rows that ranks with other experts exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// For the most rows that a microbatch can have.
    Whole,
    /// For so many times the rows of balanced loads as the model says: see
    /// [`Experts::row_budget`](crate::model::Experts::row_budget).
    Budget,
}

impl StepKind {
    /// Whether the step has a backward and an update.
    pub fn trains(self) -> bool {
        self.mode.trains()
    }
}

impl From<Mode> for StepKind {
    /// A step on samples of the whole length, with room for all rows.
    fn from(mode: Mode) -> StepKind {
        StepKind { mode, length: None, room: Room::Whole }
    }
}

impl std::fmt::Debug for StepKind {
    /// The name of the mode, and a shorter length: `Train`, `Train at length 512`, `Train in its row budget`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepKind { mode, length, room } = self;
        write!(f, "{mode:?}")?;
        if let Some(length) = length {
            write!(f, " at length {length}")?;
        }
        match room {
            Room::Whole => Ok(()),
            Room::Budget => write!(f, " in its row budget"),
        }
    }
}

/// A named part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// Everything from the first forward to the update.
    Step,
    /// Everything but the update: from [`Region::Begin`] to [`Region::Reduce`].
    Iteration,
    /// Before the first microbatch: sets the loss sum, sparse gradients and counts of 8-bit copies to 0.
    Begin,
    /// Copies the input of a microbatch's forward into the microbatch's slot: the step's inputs, or activations that
    /// another stage sent.
    Inputs {
        /// The layer that reads the input.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A chunk's layers in one direction, for one microbatch: all their regions of that phase. It exists only if chunks
    /// become graphs. Of a task it leaves out the copies from receive buffers and to send buffers.
    Chunk {
        /// The phase of the chunk's layers. With a backward comes the forward of the head.
        phase: Phase,
        /// The first of the chunk's layers.
        first: usize,
        /// The last of the chunk's layers.
        last: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A layer's forward.
    Forward {
        /// The layer, counted over the whole model; embedding and head are layers too.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A layer's backward.
    Backward {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// The weight gradients of a layer, if backwards are split. A pass puts them here.
    WeightGradients {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A block's module, within the forward, backward or weight gradients of the module's layer. It exists only if some
    /// modules of a block become graphs and others do not; see
    /// [`GraphSelection`](crate::graph_options::GraphSelection). If graphs have the first half of a module alone, that
    /// half is a module, and the other half the rest of the whole.
    Module {
        /// The module.
        module: GraphModule,
        /// The region of the layer that the module is in.
        phase: Phase,
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A [`Hook`](crate::hooks::Hook).
    Hook {
        /// The layer or module that the hook runs after.
        place: HookPlace,
        /// The microbatch.
        microbatch: usize,
    },
    /// Keeps a microbatch's losses for the host, in evaluation.
    Losses {
        /// The head.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// Sends a layer's output to the next stage.
    Outputs {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// Copies the gradient of a layer's output into the microbatch's slot. The next stage sent it.
    OutputGradients {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// Sends the gradient of a layer's input to the stage before.
    InputGradients {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// Sums gradients over data-parallel ranks, and over stages the loss and tied gradients. Passes begin most of it in
    /// backwards; no backward is left that could overlap with the last bucket.
    Reduce,
    /// Norm, clip and update.
    Optimizer,
}

impl Region {
    /// The region's layer and microbatch. `None` for the regions that a step has once.
    pub(crate) fn layer_and_microbatch(self) -> Option<(usize, usize)> {
        match self {
            Region::Chunk { first, microbatch, .. } => Some((first, microbatch)),
            Region::Inputs { layer, microbatch }
            | Region::Forward { layer, microbatch }
            | Region::Losses { layer, microbatch }
            | Region::Outputs { layer, microbatch }
            | Region::OutputGradients { layer, microbatch }
            | Region::Backward { layer, microbatch }
            | Region::WeightGradients { layer, microbatch }
            | Region::Module { layer, microbatch, .. }
            | Region::InputGradients { layer, microbatch }
            | Region::Hook { place: HookPlace { layer, .. }, microbatch } => Some((layer, microbatch)),
            Region::Step | Region::Iteration | Region::Begin | Region::Reduce | Region::Optimizer => None,
        }
    }

    /// The region's name, without layer and microbatch.
    pub(crate) fn kind(self) -> String {
        let word = match self {
            Region::Step => "step",
            Region::Iteration => "iteration",
            Region::Begin => "begin",
            Region::Inputs { .. } => "inputs",
            Region::Chunk { phase, first, microbatch, .. } => return Region::of_phase(phase, first, microbatch).kind(),
            Region::Forward { .. } => "forward",
            Region::Losses { .. } => "losses",
            Region::Outputs { .. } => "outputs",
            Region::OutputGradients { .. } => "output gradients",
            Region::Backward { .. } => "backward",
            Region::WeightGradients { .. } => "weights",
            Region::Module { module, phase, layer, microbatch } => {
                return format!("{module} {}", Region::of_phase(phase, layer, microbatch).kind());
            }
            Region::InputGradients { .. } => "input gradients",
            Region::Hook { .. } => "hook",
            Region::Reduce => "reduce",
            Region::Optimizer => "optimizer",
        };
        word.into()
    }

    /// Whether the region is a layer's backward or part of one.
    pub(crate) fn is_backward(self) -> bool {
        matches!(self, Region::Backward { .. } | Region::Module { phase: Phase::Backward, .. })
    }

    /// A layer's region.
    fn of_phase(phase: Phase, layer: usize, microbatch: usize) -> Region {
        match phase {
            Phase::Forward => Region::Forward { layer, microbatch },
            Phase::Backward => Region::Backward { layer, microbatch },
            Phase::WeightGradients => Region::WeightGradients { layer, microbatch },
        }
    }

    /// The region of a module within this region of a layer; `None` if modules have no region there.
    pub(crate) fn of_module(self, module: GraphModule) -> Option<Region> {
        let (phase, layer, microbatch) = match self {
            Region::Forward { layer, microbatch } => (Phase::Forward, layer, microbatch),
            Region::Backward { layer, microbatch } => (Phase::Backward, layer, microbatch),
            Region::WeightGradients { layer, microbatch } => (Phase::WeightGradients, layer, microbatch),
            _ => return None,
        };
        Some(Region::Module { module, phase, layer, microbatch })
    }

    /// The same region of another microbatch.
    pub(crate) fn with_microbatch(self, microbatch: usize) -> Region {
        match self {
            Region::Inputs { layer, .. } => Region::Inputs { layer, microbatch },
            Region::Chunk { phase, first, last, .. } => Region::Chunk { phase, first, last, microbatch },
            Region::Forward { layer, .. } => Region::Forward { layer, microbatch },
            Region::Losses { layer, .. } => Region::Losses { layer, microbatch },
            Region::Outputs { layer, .. } => Region::Outputs { layer, microbatch },
            Region::OutputGradients { layer, .. } => Region::OutputGradients { layer, microbatch },
            Region::Backward { layer, .. } => Region::Backward { layer, microbatch },
            Region::WeightGradients { layer, .. } => Region::WeightGradients { layer, microbatch },
            Region::Module { module, phase, layer, .. } => Region::Module { module, phase, layer, microbatch },
            Region::InputGradients { layer, .. } => Region::InputGradients { layer, microbatch },
            Region::Hook { place, .. } => Region::Hook { place, microbatch },
            Region::Step | Region::Iteration | Region::Begin | Region::Reduce | Region::Optimizer => self,
        }
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind();
        match (self, self.layer_and_microbatch()) {
            (_, None) => write!(f, "{kind}"),
            (Region::Chunk { first, last, microbatch, .. }, _) => {
                write!(f, "{kind} of layers {first} to {last}, microbatch {microbatch}")
            }
            (Region::Hook { place, microbatch }, _) => write!(f, "{kind} of {place}, microbatch {microbatch}"),
            (Region::Inputs { layer: 0, .. } | Region::Losses { .. }, Some((_, microbatch))) => {
                write!(f, "{kind} of microbatch {microbatch}")
            }
            (_, Some((layer, microbatch))) => write!(f, "{kind} of layer {layer}, microbatch {microbatch}"),
        }
    }
}
