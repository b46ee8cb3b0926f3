//! The regions of a step.

use crate::graph_options::GraphModule;
use crate::hooks::HookPlace;

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Forward, backward, update.
    Train,
    /// The same, to the same bits; it also counts what 8-bit copies lose.
    Measure,
    /// Forward only, without dropout.
    Evaluate,
    /// Forward of a whole prompt, which fills a cache.
    Prefill,
    /// Forward of one more token, over a cache.
    Decode,
}

impl Mode {
    /// Whether it has a backward and an update.
    pub fn trains(self) -> bool {
        matches!(self, Mode::Train | Mode::Measure)
    }
}

/// A named piece of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// Everything from the first forward to the update.
    Step,
    /// Everything but the update: from [`Region::Begin`] to [`Region::Reduce`].
    Iteration,
    /// Before the first microbatch: sets the loss sum, sparse gradients and counts of 8-bit copies to 0.
    Begin,
    /// Copies the input of a microbatch's forward into its slot: the step's inputs, or what another stage sent.
    Inputs {
        /// The layer that reads it.
        layer: usize,
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
    /// The weight gradients of a layer, where backwards are split. A pass puts them here.
    WeightGradients {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A block's module, within the forward, backward or weight gradients of its layer. Only where some modules of a block
    /// become graphs and others do not; see [`GraphSelection`](crate::graph_options::GraphSelection).
    Module {
        /// The module.
        module: GraphModule,
        /// The region of the layer that it is in.
        pass: Pass,
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// A [`Hook`](crate::hooks::Hook).
    Hook {
        /// What it runs after.
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
    /// Copies the gradient of a layer's output, which the next stage sent, into the microbatch's slot.
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

/// The region of a layer that a module's region is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// [`Region::Forward`].
    Forward,
    /// [`Region::Backward`].
    Backward,
    /// [`Region::WeightGradients`].
    WeightGradients,
}

impl Region {
    /// The layer and the microbatch it belongs to.
    pub(crate) fn place(self) -> Option<(usize, usize)> {
        match self {
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

    /// What it is, without layer and microbatch.
    pub(crate) fn kind(self) -> String {
        let word = match self {
            Region::Step => "step",
            Region::Iteration => "iteration",
            Region::Begin => "begin",
            Region::Inputs { .. } => "inputs",
            Region::Forward { .. } => "forward",
            Region::Losses { .. } => "losses",
            Region::Outputs { .. } => "outputs",
            Region::OutputGradients { .. } => "output gradients",
            Region::Backward { .. } => "backward",
            Region::WeightGradients { .. } => "weights",
            Region::Module { module, pass, .. } => return format!("{module} {pass}"),
            Region::InputGradients { .. } => "input gradients",
            Region::Hook { .. } => "hook",
            Region::Reduce => "reduce",
            Region::Optimizer => "optimizer",
        };
        word.into()
    }

    /// Whether it is a layer's backward or part of one.
    pub(crate) fn is_backward(self) -> bool {
        matches!(self, Region::Backward { .. } | Region::Module { pass: Pass::Backward, .. })
    }

    /// The region of a module within this region of its layer; `None` where modules have none.
    pub(crate) fn of_module(self, module: GraphModule) -> Option<Region> {
        let (pass, layer, microbatch) = match self {
            Region::Forward { layer, microbatch } => (Pass::Forward, layer, microbatch),
            Region::Backward { layer, microbatch } => (Pass::Backward, layer, microbatch),
            Region::WeightGradients { layer, microbatch } => (Pass::WeightGradients, layer, microbatch),
            _ => return None,
        };
        Some(Region::Module { module, pass, layer, microbatch })
    }

    /// The same region of another microbatch.
    pub(crate) fn with_microbatch(self, microbatch: usize) -> Region {
        match self {
            Region::Inputs { layer, .. } => Region::Inputs { layer, microbatch },
            Region::Forward { layer, .. } => Region::Forward { layer, microbatch },
            Region::Losses { layer, .. } => Region::Losses { layer, microbatch },
            Region::Outputs { layer, .. } => Region::Outputs { layer, microbatch },
            Region::OutputGradients { layer, .. } => Region::OutputGradients { layer, microbatch },
            Region::Backward { layer, .. } => Region::Backward { layer, microbatch },
            Region::WeightGradients { layer, .. } => Region::WeightGradients { layer, microbatch },
            Region::Module { module, pass, layer, .. } => Region::Module { module, pass, layer, microbatch },
            Region::InputGradients { layer, .. } => Region::InputGradients { layer, microbatch },
            Region::Hook { place, .. } => Region::Hook { place, microbatch },
            Region::Step | Region::Iteration | Region::Begin | Region::Reduce | Region::Optimizer => self,
        }
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind();
        match (self, self.place()) {
            (_, None) => write!(f, "{kind}"),
            (Region::Hook { place, microbatch }, _) => write!(f, "{kind} of {place}, microbatch {microbatch}"),
            (Region::Inputs { layer: 0, .. } | Region::Losses { .. }, Some((_, microbatch))) => {
                write!(f, "{kind} of microbatch {microbatch}")
            }
            (_, Some((layer, microbatch))) => write!(f, "{kind} of layer {layer}, microbatch {microbatch}"),
        }
    }
}

impl std::fmt::Display for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::WeightGradients => "weights",
        })
    }
}
