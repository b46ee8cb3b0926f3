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
    /// A microbatch's inputs are put in place.
    Inputs {
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
    /// The reduction of the last gradient bucket, which no backward is left to hide.
    Reduce,
    /// Norm, clip and update.
    Optimizer,
    /// What comes after the update: metrics are handed to the host.
    End,
}

impl Region {
    /// The microbatch it belongs to.
    pub fn microbatch(self) -> Option<usize> {
        match self {
            Region::Inputs { microbatch }
            | Region::Forward { microbatch, .. }
            | Region::Backward { microbatch, .. } => Some(microbatch),
            _ => None,
        }
    }

    /// What a watchdog calls it: a slot's graph serves several microbatches. None of what is made of regions.
    pub(crate) fn mark(self) -> Option<String> {
        match self {
            Region::Step | Region::Iteration => None,
            Region::Inputs { .. } => Some("inputs".into()),
            Region::Forward { layer, .. } => Some(format!("forward of layer {layer}")),
            Region::Backward { layer, .. } => Some(format!("backward of layer {layer}")),
            other => Some(other.to_string()),
        }
    }

    /// The same region of another microbatch.
    pub(crate) fn with_microbatch(self, microbatch: usize) -> Region {
        match self {
            Region::Inputs { .. } => Region::Inputs { microbatch },
            Region::Forward { layer, .. } => Region::Forward { layer, microbatch },
            Region::Backward { layer, .. } => Region::Backward { layer, microbatch },
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
            Region::Forward { .. } | Region::Backward { .. } | Region::Reduce if per_layer => Ok(()),
            Region::Optimizer if per_layer && options.capture_optimizer => Ok(()),
            Region::Optimizer => Err("capture_optimizer is off"),
            Region::Step | Region::Iteration => Err("it is made of regions"),
            Region::Inputs { .. } => Err("it reads another address for each microbatch"),
            Region::Begin => Err("it is a fill or two"),
            _ => Err("it is eager by nature"),
        }
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Region::Step => write!(f, "step"),
            Region::Iteration => write!(f, "iteration"),
            Region::Begin => write!(f, "begin"),
            Region::Inputs { microbatch } => write!(f, "inputs of microbatch {microbatch}"),
            Region::Forward { layer, microbatch } => write!(f, "forward of layer {layer}, microbatch {microbatch}"),
            Region::Backward { layer, microbatch } => write!(f, "backward of layer {layer}, microbatch {microbatch}"),
            Region::Reduce => write!(f, "reduce"),
            Region::Optimizer => write!(f, "optimizer"),
            Region::End => write!(f, "end"),
        }
    }
}
