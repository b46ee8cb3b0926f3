//! A ready region type and policy for training steps: layers, phases, microbatches and chunks.

use std::fmt::{Display, Formatter};

use crate::call_order::{Call, Phase};
use crate::policy::{Instance, Policy};

/// A region of a training step. With [`TrainingPolicy`] a program needs no region type of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TrainingRegion {
    /// The forward, the backward or the weight gradients of a layer, for a microbatch.
    Layer {
        /// The call: layer, phase and microbatch.
        call: Call,
        /// The chunk of layers that the layer belongs to; see [`Instance::chunk`].
        chunk: usize,
    },
    /// Other work for a microbatch, such as the microbatch's inputs or loss.
    Microbatch {
        /// The region's name.
        name: &'static str,
        /// The microbatch, counted from 0.
        microbatch: usize,
        /// The chunk of layers that the work belongs to; see [`Instance::chunk`].
        chunk: usize,
    },
    /// Work that a step does once, such as the update, or a whole step.
    Once(&'static str),
}

impl TrainingRegion {
    /// The forward of a layer for a microbatch, in chunk 0.
    pub fn forward(layer: usize, microbatch: usize) -> TrainingRegion {
        TrainingRegion::Layer { call: Call { phase: Phase::Forward, layer, microbatch }, chunk: 0 }
    }

    /// The backward of a layer for a microbatch, in chunk 0.
    pub fn backward(layer: usize, microbatch: usize) -> TrainingRegion {
        TrainingRegion::Layer { call: Call { phase: Phase::Backward, layer, microbatch }, chunk: 0 }
    }

    /// Weight gradients that the backward of a layer has deferred, for a microbatch, in chunk 0.
    pub fn weight_gradients(layer: usize, microbatch: usize) -> TrainingRegion {
        TrainingRegion::Layer { call: Call { phase: Phase::WeightGradients, layer, microbatch }, chunk: 0 }
    }

    /// Other work for a microbatch, in chunk 0.
    pub fn of_microbatch(name: &'static str, microbatch: usize) -> TrainingRegion {
        TrainingRegion::Microbatch { name, microbatch, chunk: 0 }
    }

    /// The same region in another chunk. Work that a step does once is in none.
    pub fn in_chunk(self, chunk: usize) -> TrainingRegion {
        match self {
            TrainingRegion::Layer { call, .. } => TrainingRegion::Layer { call, chunk },
            TrainingRegion::Microbatch { name, microbatch, .. } => {
                TrainingRegion::Microbatch { name, microbatch, chunk }
            }
            TrainingRegion::Once(_) => self,
        }
    }

    /// The microbatch and the chunk that the region belongs to.
    fn place(self) -> Option<(usize, usize)> {
        match self {
            TrainingRegion::Layer { call, chunk } => Some((call.microbatch, chunk)),
            TrainingRegion::Microbatch { microbatch, chunk, .. } => Some((microbatch, chunk)),
            TrainingRegion::Once(_) => None,
        }
    }

    /// The same region of the first microbatch.
    fn first(self) -> TrainingRegion {
        match self {
            TrainingRegion::Layer { call, chunk } => {
                TrainingRegion::Layer { call: Call { microbatch: 0, ..call }, chunk }
            }
            TrainingRegion::Microbatch { name, chunk, .. } => TrainingRegion::Microbatch { name, microbatch: 0, chunk },
            TrainingRegion::Once(_) => self,
        }
    }
}

impl Display for TrainingRegion {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            TrainingRegion::Layer { call, .. } => write!(f, "{call}"),
            TrainingRegion::Microbatch { name, microbatch, .. } => write!(f, "{name} of microbatch {microbatch}"),
            TrainingRegion::Once(name) => f.write_str(name),
        }
    }
}

/// Whether a region becomes a graph, or the reason why not.
type Captured = Box<dyn Fn(TrainingRegion) -> Result<(), &'static str>>;

/// The policy of [`TrainingRegion`]s. By default every outermost region becomes a graph. Its modes are names, such as
/// `"train"` and `"evaluate"`.
///
/// ```
/// use graph_manager::{TrainingPolicy, TrainingRegion};
///
/// // Only layer 1 becomes graphs.
/// TrainingPolicy::choosing(|region| match region {
///     TrainingRegion::Layer { call, .. } if call.layer == 1 => Ok(()),
///     _ => Err("it is not of layer 1"),
/// });
/// ```
pub struct TrainingPolicy(Captured);

impl Default for TrainingPolicy {
    fn default() -> TrainingPolicy {
        TrainingPolicy(Box::new(|_| Ok(())))
    }
}

impl TrainingPolicy {
    /// A policy that asks `captured` which regions become graphs: see [`Policy::captured`].
    pub fn choosing(captured: impl Fn(TrainingRegion) -> Result<(), &'static str> + 'static) -> TrainingPolicy {
        TrainingPolicy(Box::new(captured))
    }
}

impl Policy for TrainingPolicy {
    type Region = TrainingRegion;
    type Mode = &'static str;

    fn captured(&self, region: TrainingRegion) -> Result<(), &'static str> {
        (self.0)(region)
    }

    fn instance(&self, region: TrainingRegion) -> Option<Instance<TrainingRegion>> {
        let (microbatch, chunk) = region.place()?;
        Some(Instance { microbatch, first: region.first(), chunk })
    }

    fn kind(&self, region: TrainingRegion) -> String {
        match region {
            TrainingRegion::Layer { call: Call { phase, layer, .. }, .. } => format!("{phase} of layer {layer}"),
            TrainingRegion::Microbatch { name, .. } | TrainingRegion::Once(name) => name.into(),
        }
    }
}
