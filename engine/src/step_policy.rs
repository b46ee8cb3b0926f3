//! What the graph manager is told about the regions of a step.

use device::Stream;
use graph_manager::{CudaGraphManager, Instance, Policy};

use crate::graph_options::{GraphOptions, Scope};
use crate::regions::{Mode, Region, Variant};

/// A step under way, as layers see it.
pub type StepContext<'m> = graph_manager::StepContext<'m, StepPolicy>;

/// What a rank's steps consist of. It follows from the rank's layers and groups; it is not a setting.
#[derive(Clone, Debug, Default)]
pub struct StepShape {
    /// The number of the first layer of each chunk. Microbatches in flight are counted for each chunk by itself, so each
    /// chunk has its own slots. Empty if there is only one chunk.
    pub chunks: Vec<usize>,
    /// Backwards defer weight gradients to [`Region::WeightGradients`], which then complete a layer's gradients.
    pub splits_backward: bool,
    /// In the last microbatch, the regions that complete gradients also reduce them. So they have graphs of their own.
    pub reduces: bool,
    /// In the first microbatch, forward regions also gather weights. So they have graphs of their own.
    pub gathers: bool,
}

/// Which regions become graphs, and what microbatches share.
#[derive(Clone, Debug)]
pub struct StepPolicy {
    scope: Scope,
    capture_optimizer: bool,
    shape: StepShape,
}

impl StepPolicy {
    /// A graph manager for steps of that shape. Their operations are submitted to `compute`.
    ///
    /// # Errors
    /// Graphs that are on without a warm-up step.
    pub fn manager(
        compute: Stream,
        options: &GraphOptions,
        shape: StepShape,
    ) -> graph_manager::Result<CudaGraphManager<StepPolicy>> {
        let policy = StepPolicy { scope: options.scope, capture_optimizer: options.capture_optimizer, shape };
        CudaGraphManager::new(compute, options.manager_options(), policy)
    }

    /// The chunk a layer belongs to.
    fn chunk_of(&self, layer: usize) -> usize {
        self.shape.chunks.iter().rposition(|first| *first <= layer).unwrap_or(0)
    }
}

impl Policy for StepPolicy {
    type Region = Region;
    type Mode = Mode;
    type Variant = Variant;

    fn captured(&self, region: Region) -> Result<(), &'static str> {
        let per_layer = self.scope == Scope::PerLayer;
        match region {
            Region::Step if !per_layer && self.capture_optimizer => Ok(()),
            Region::Iteration if !per_layer && !self.capture_optimizer => Ok(()),
            Region::Forward { .. } | Region::Backward { .. } | Region::WeightGradients { .. } | Region::Reduce
                if per_layer =>
            {
                Ok(())
            }
            Region::Optimizer if per_layer && self.capture_optimizer => Ok(()),
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

    fn instance(&self, region: Region) -> Option<Instance<Region>> {
        let (layer, microbatch) = region.place()?;
        Some(Instance { microbatch, first: region.with_microbatch(0), chunk: self.chunk_of(layer) })
    }

    fn variant(&self, mode: Mode, region: Region, microbatches: usize) -> Variant {
        let (train, shape) = (mode == Mode::Train, &self.shape);
        let overwrites = train && microbatches == 1;
        let last = |microbatch: usize| train && shape.reduces && microbatch == microbatches - 1;
        match region {
            Region::Forward { microbatch, .. } => {
                Variant { gathers: shape.gathers && microbatch == 0, reduces: false, overwrites }
            }
            Region::Backward { microbatch, .. } => {
                Variant { gathers: false, reduces: !shape.splits_backward && last(microbatch), overwrites }
            }
            Region::WeightGradients { microbatch, .. } => {
                Variant { gathers: false, reduces: last(microbatch), overwrites }
            }
            _ => Variant { overwrites, ..Variant::default() },
        }
    }

    fn saved_by(&self, region: Region) -> Option<Region> {
        match region {
            Region::Forward { layer, microbatch } | Region::Backward { layer, microbatch } => {
                Some(Region::Forward { layer, microbatch })
            }
            _ => None,
        }
    }

    fn deferred_by(&self, region: Region) -> Option<Region> {
        match region {
            Region::Backward { layer, microbatch } | Region::WeightGradients { layer, microbatch } => {
                self.shape.splits_backward.then_some(Region::Backward { layer, microbatch })
            }
            _ => None,
        }
    }

    fn kind(&self, region: Region) -> String {
        region.to_string().split(" of ").next().unwrap_or_default().into()
    }

    fn mark(&self, region: Region) -> Option<String> {
        match region {
            Region::Step | Region::Iteration => None,
            Region::Inputs { .. } => Some("inputs".into()),
            Region::Forward { layer, .. } => Some(format!("forward of layer {layer}")),
            Region::Backward { layer, .. } => Some(format!("backward of layer {layer}")),
            Region::WeightGradients { layer, .. } => Some(format!("weights of layer {layer}")),
            other => Some(other.to_string()),
        }
    }
}
