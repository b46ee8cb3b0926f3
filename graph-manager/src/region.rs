//! The pieces a step is made of.

use crate::{GraphOptions, Scope};

/// What a step is for. Each mode has its own recording, plan and graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Forward, backward, update.
    Train,
    /// Forward only, without dropout.
    Evaluate,
    /// Forward of a whole prompt, which fills a cache.
    Prefill,
    /// Forward of one more token, over a cache.
    Decode,
}

/// A named piece of a step. Regions nest: inside a captured region the inner ones are just part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// Everything from the first forward to the update.
    Step,
    /// All forwards and backwards.
    Iteration,
    /// What comes before the first microbatch: gradients are zeroed.
    Begin,
    /// What a microbatch's forward takes is put in place: the step's inputs, or what another stage sent.
    Inputs {
        /// The layer that takes them.
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
    /// What a layer's backward put off: the gradients of its weights.
    Weights {
        /// The layer.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// What a layer's forward made goes to the next stage.
    Outputs {
        /// The layer that made it.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// The gradient that the next stage sent of what a layer's forward made is put in place.
    OutputGradients {
        /// The layer whose backward takes it.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// The gradient of what a layer's forward took goes to the stage before.
    InputGradients {
        /// The layer whose backward made it.
        layer: usize,
        /// The microbatch.
        microbatch: usize,
    },
    /// The reduction of the last gradient bucket, which no backward is left to hide.
    Reduce,
    /// Norm, clip and update.
    Optimizer,
}

impl Region {
    /// The layer and the microbatch it belongs to.
    fn place(self) -> Option<(usize, usize)> {
        match self {
            Region::Inputs { layer, microbatch }
            | Region::Forward { layer, microbatch }
            | Region::Outputs { layer, microbatch }
            | Region::OutputGradients { layer, microbatch }
            | Region::Backward { layer, microbatch }
            | Region::Weights { layer, microbatch }
            | Region::InputGradients { layer, microbatch } => Some((layer, microbatch)),
            Region::Step | Region::Iteration | Region::Begin | Region::Reduce | Region::Optimizer => None,
        }
    }

    /// The microbatch it belongs to.
    pub fn microbatch(self) -> Option<usize> {
        self.place().map(|(_, microbatch)| microbatch)
    }

    /// The layer it belongs to.
    pub fn layer(self) -> Option<usize> {
        self.place().map(|(layer, _)| layer)
    }

    /// What a watchdog calls it: a slot's graph serves several microbatches. None of what is made of regions.
    pub(crate) fn mark(self) -> Option<String> {
        match self {
            Region::Step | Region::Iteration => None,
            Region::Inputs { .. } => Some("inputs".into()),
            Region::Forward { layer, .. } => Some(format!("forward of layer {layer}")),
            Region::Backward { layer, .. } => Some(format!("backward of layer {layer}")),
            Region::Weights { layer, .. } => Some(format!("weights of layer {layer}")),
            other => Some(other.to_string()),
        }
    }

    /// The same region of another microbatch.
    pub(crate) fn with_microbatch(self, microbatch: usize) -> Region {
        match self {
            Region::Inputs { layer, .. } => Region::Inputs { layer, microbatch },
            Region::Forward { layer, .. } => Region::Forward { layer, microbatch },
            Region::Outputs { layer, .. } => Region::Outputs { layer, microbatch },
            Region::OutputGradients { layer, .. } => Region::OutputGradients { layer, microbatch },
            Region::Backward { layer, .. } => Region::Backward { layer, microbatch },
            Region::Weights { layer, .. } => Region::Weights { layer, microbatch },
            Region::InputGradients { layer, .. } => Region::InputGradients { layer, microbatch },
            other => other,
        }
    }

    /// Whether these settings make a graph of it, or the reason why not.
    pub(crate) fn captured(self, options: &GraphOptions) -> Result<(), &'static str> {
        if !options.enable {
            return Err("graphs are off");
        }
        let per_layer = options.scope == Scope::PerLayer;
        match self {
            Region::Step if !per_layer && options.capture_optimizer => Ok(()),
            Region::Iteration if !per_layer && !options.capture_optimizer => Ok(()),
            Region::Forward { .. } | Region::Backward { .. } | Region::Weights { .. } | Region::Reduce if per_layer => {
                Ok(())
            }
            Region::Optimizer if per_layer && options.capture_optimizer => Ok(()),
            Region::Optimizer => Err("capture_optimizer is off"),
            Region::Step | Region::Iteration => Err("it is made of regions"),
            Region::Inputs { .. } => Err("it reads another address for each microbatch"),
            Region::Begin => Err("it is a fill or two"),
            Region::Outputs { .. } | Region::OutputGradients { .. } | Region::InputGradients { .. } => {
                Err("it meets transfers between stages")
            }
            _ => Err("it is part of a larger region's graph"),
        }
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Region::Step => write!(f, "step"),
            Region::Iteration => write!(f, "iteration"),
            Region::Begin => write!(f, "begin"),
            Region::Inputs { layer: 0, microbatch } => write!(f, "inputs of microbatch {microbatch}"),
            Region::Inputs { layer, microbatch } => write!(f, "inputs of layer {layer}, microbatch {microbatch}"),
            Region::Forward { layer, microbatch } => write!(f, "forward of layer {layer}, microbatch {microbatch}"),
            Region::Outputs { layer, microbatch } => write!(f, "outputs of layer {layer}, microbatch {microbatch}"),
            Region::OutputGradients { layer, microbatch } => {
                write!(f, "output gradients of layer {layer}, microbatch {microbatch}")
            }
            Region::Backward { layer, microbatch } => write!(f, "backward of layer {layer}, microbatch {microbatch}"),
            Region::Weights { layer, microbatch } => write!(f, "weights of layer {layer}, microbatch {microbatch}"),
            Region::InputGradients { layer, microbatch } => {
                write!(f, "input gradients of layer {layer}, microbatch {microbatch}")
            }
            Region::Reduce => write!(f, "reduce"),
            Region::Optimizer => write!(f, "optimizer"),
        }
    }
}
