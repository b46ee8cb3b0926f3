//! The policy of a step. It tells the graph manager how to treat each region.

use std::ops::Range;

use device::Stream;
use graph_manager::{CudaGraphManager, Error, Instance, Policy};

use crate::batch_sizes::BatchSizes;
use crate::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use crate::hooks::Hooks;
use crate::regions::{Region, StepKind};

/// A step under way, in the layers' view.
pub type StepContext<'m> = graph_manager::StepContext<'m, StepPolicy>;

/// A description of a rank's steps. It follows from the rank's layers, groups and data; it is not a setting.
#[derive(Clone, Debug, Default)]
pub struct StepShape {
    /// Layers of the whole model; the first embeds, the last is the head.
    pub layers: usize,
    /// The modules of each layer; empty where layers have none.
    pub modules: Vec<Vec<GraphModule>>,
    /// Backwards recompute whole blocks.
    pub recomputes_blocks: bool,
    /// The number of the first layer of each chunk. Microbatches in flight are counted for each chunk by itself, so
    /// each chunk has its own slots. Empty if there is only one chunk.
    pub chunks: Vec<usize>,
    /// The user's code in forward.
    pub hooks: Hooks,
    /// The sizes of a microbatch with samples of the whole length.
    pub microbatch: BatchSizes,
    /// Ranks that divide each sample.
    pub context_ranks: usize,
    /// The layers whose gradients ranks divide.
    pub divided_gradients: Range<usize>,
}

/// Selects the regions that become graphs, and tells the manager which regions differ only in the microbatch.
#[derive(Clone, Debug)]
pub struct StepPolicy {
    /// What one graph contains; `None` with graphs off.
    graphs: Option<Scope>,
    /// The chosen modules and layers. All of them unless the scope is per layer and graphs are on.
    only: GraphSelection,
    capture_optimizer: bool,
    shape: StepShape,
}

/// The parts of a layer that become graphs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LayerGraphs {
    /// The whole layer, as one graph.
    Whole,
    /// Some modules of a block.
    Modules,
    /// Nothing, for this reason.
    None(&'static str),
}

impl StepPolicy {
    /// A graph manager for steps of that shape. Their operations are submitted to `compute`.
    ///
    /// # Errors
    /// Graphs that are on without a warm-up step; a choice of modules or layers that the model or the scope does not
    /// have.
    pub fn manager(
        compute: Stream,
        options: &GraphOptions,
        shape: StepShape,
    ) -> graph_manager::Result<CudaGraphManager<StepPolicy>> {
        let only = if options.enable { options.only.clone() } else { GraphSelection::default() };
        let graphs = options.enable.then_some(options.scope);
        let policy = StepPolicy { graphs, only, capture_optimizer: options.capture_optimizer, shape };
        policy.check_selection()?;
        policy.check_hooks()?;
        CudaGraphManager::new(compute, options.manager_options(), policy)
    }

    /// Fails if modules or layers are chosen that the model or the scope does not have.
    fn check_selection(&self) -> graph_manager::Result<()> {
        let refuse = |problem: String, fix: &'static str| Err(Error::Usage { problem, fix });
        if let Some(larger) = self.larger_graphs().filter(|_| !self.only.is_everything()) {
            let problem = format!("some modules or layers are chosen, but {larger}");
            return refuse(problem, "set scope to PerLayer, or choose everything");
        }
        let of_model: Vec<&GraphModule> = self.shape.modules.iter().flatten().collect();
        if let Some(module) = self.only.modules.iter().find(|module| !of_model.contains(&&module.whole())) {
            return refuse(format!("the chosen module `{module}` is not in the model"), "choose modules of the model");
        }
        let [whole, router, row_order] =
            [GraphModule::EXPERTS, GraphModule::ROUTER, GraphModule::ROW_ORDER].map(|module| self.names(module));
        if (router && whole) || (row_order && !router) {
            let problem =
                "`moe` is the whole layer, `moe_router` its first half, and `moe_preprocess` a part of that half";
            return refuse(problem.into(), "choose moe, moe_router, or moe_router with moe_preprocess");
        }
        if let Some(layer) = self.only.layers.iter().find(|layer| **layer >= self.shape.layers) {
            let problem = format!("the chosen layer {layer} is not in the model, which has {}", self.shape.layers);
            return refuse(problem, "choose layers of the model, counted from 0");
        }
        if self.shape.recomputes_blocks && self.shape.modules.iter().any(|of_layer| self.splits(of_layer)) {
            let problem = "a module of a block cannot be a graph where backward recomputes whole blocks";
            return refuse(problem.into(), "choose all modules of blocks, or recompute no whole blocks");
        }
        Ok(())
    }

    /// The extent of one graph, in words, if the graph contains several layers.
    fn larger_graphs(&self) -> Option<&'static str> {
        match self.graphs? {
            Scope::PerLayer => None,
            Scope::PerChunk => Some("under PerChunk a whole chunk of layers is one graph"),
            Scope::FullIteration => Some("under FullIteration the whole step is one graph"),
        }
    }

    /// Fails on hooks that cannot be captured, if graphs cannot leave such hooks out.
    fn check_hooks(&self) -> graph_manager::Result<()> {
        if self.graphs.is_none() {
            return Ok(());
        }
        for (place, reason) in self.shape.hooks.not_capturable() {
            let refuse = |problem: &str, fix: &'static str| {
                Err(Error::Usage {
                    problem: format!("the hook of {place} cannot be captured, {reason}: {problem}"),
                    fix,
                })
            };
            if let Some(larger) = self.larger_graphs() {
                return refuse(larger, "set scope to PerLayer");
            }
            if self.shape.recomputes_blocks && place.module.is_some() {
                return refuse("backward recomputes whole blocks", "hook the layer, or recompute no whole blocks");
            }
        }
        Ok(())
    }

    /// What one graph contains; `None` with graphs off. Work on a side stream must end in the graph that began it: in the
    /// region of a layer, or in [`Region::Chunk`], which steps have only if chunks become graphs.
    pub(crate) fn graphs(&self) -> Option<Scope> {
        self.graphs
    }

    /// Whether the modules of this layer have separate regions.
    pub(crate) fn divides(&self, layer: usize) -> bool {
        self.layer_graphs(layer) == LayerGraphs::Modules
    }

    /// Whether ranks divide the gradients of this layer.
    pub(crate) fn divides_gradients(&self, layer: usize) -> bool {
        self.shape.divided_gradients.contains(&layer)
    }

    /// The sizes of a microbatch with samples of that length; `None`: the whole one.
    pub(crate) fn sizes(&self, length: Option<usize>) -> BatchSizes {
        let whole = self.shape.microbatch;
        let here = length.map(|length| length / self.shape.context_ranks);
        BatchSizes { tokens_per_sample: here.unwrap_or(whole.tokens_per_sample), ..whole }
    }

    /// The user's code in forward.
    pub(crate) fn hooks(&self) -> &Hooks {
        &self.shape.hooks
    }

    /// Whether graphs must leave out a hook between the modules of this layer.
    fn breaks(&self, layer: usize) -> bool {
        self.shape.hooks.not_capturable().any(|(place, _)| place.layer == layer && place.module.is_some())
    }

    /// Whether the user names a module as one that becomes a graph.
    pub(crate) fn names(&self, module: GraphModule) -> bool {
        self.only.modules.contains(&module)
    }

    /// Whether a module is among the chosen modules.
    fn chooses(&self, module: GraphModule) -> bool {
        self.only.modules.is_empty() || self.names(module)
    }

    /// Whether a module is among the chosen modules, or a part of the module is.
    fn chooses_some(&self, module: GraphModule) -> bool {
        self.chooses(module) || self.only.modules.iter().any(|chosen| chosen.whole() == module)
    }

    /// Whether a layer has modules that become graphs and others that do not.
    fn splits(&self, of_layer: &[GraphModule]) -> bool {
        of_layer.iter().any(|module| self.chooses_some(*module)) && !of_layer.iter().all(|module| self.chooses(*module))
    }

    /// The parts of a layer that become graphs.
    fn layer_graphs(&self, layer: usize) -> LayerGraphs {
        let GraphSelection { modules, layers } = &self.only;
        let of_layer = self.shape.modules.get(layer).map_or(&[][..], Vec::as_slice);
        if !layers.is_empty() && !layers.contains(&layer) {
            LayerGraphs::None("its layer is not among the chosen ones")
        } else if self.breaks(layer) || self.splits(of_layer) {
            LayerGraphs::Modules
        } else if modules.is_empty() || of_layer.iter().any(|module| self.chooses(*module)) {
            LayerGraphs::Whole
        } else if layer == 0 {
            LayerGraphs::None("the embedding is not among the chosen modules")
        } else if layer + 1 == self.shape.layers {
            LayerGraphs::None("the head is not among the chosen modules")
        } else {
            LayerGraphs::None("no module of its block is among the chosen ones")
        }
    }

    /// The chunk a layer belongs to.
    fn chunk_of(&self, layer: usize) -> usize {
        self.shape.chunks.iter().rposition(|first| *first <= layer).unwrap_or(0)
    }
}

impl Policy for StepPolicy {
    type Region = Region;
    type Mode = StepKind;

    fn captured(&self, region: Region) -> Result<(), &'static str> {
        let [per_layer, whole] = [Scope::PerLayer, Scope::FullIteration].map(|scope| self.graphs == Some(scope));
        match region {
            Region::Step if whole && self.capture_optimizer => Ok(()),
            Region::Iteration if whole && !self.capture_optimizer => Ok(()),
            Region::Chunk { .. } if !whole => Ok(()),
            Region::Forward { layer, .. } | Region::Backward { layer, .. } | Region::WeightGradients { layer, .. }
                if per_layer =>
            {
                match self.layer_graphs(layer) {
                    LayerGraphs::Whole => Ok(()),
                    LayerGraphs::Modules => Err("it is made of regions"),
                    LayerGraphs::None(reason) => Err(reason),
                }
            }
            Region::Module { module, .. } if self.chooses(module) => Ok(()),
            Region::Module { .. } => Err("it is not among the chosen modules"),
            Region::Hook { place, .. } if per_layer => self.shape.hooks.capturable(place),
            Region::Reduce if !whole => Ok(()),
            Region::Optimizer if !whole && self.capture_optimizer => Ok(()),
            Region::Optimizer => Err("capture_optimizer is off"),
            Region::Step | Region::Iteration => Err("it is made of regions"),
            Region::Inputs { .. } => Err("it reads another address for each microbatch"),
            Region::Losses { .. } => Err("it writes to another address for each microbatch"),
            Region::Begin => Err("it is a fill or two"),
            Region::Outputs { .. } | Region::OutputGradients { .. } | Region::InputGradients { .. } => {
                Err("it meets transfers between stages")
            }
            _ => Err("it is part of a larger region's graph"),
        }
    }

    fn instance(&self, region: Region) -> Option<Instance<Region>> {
        let (layer, microbatch) = region.layer_and_microbatch()?;
        Some(Instance { microbatch, first: region.with_microbatch(0), chunk: self.chunk_of(layer) })
    }

    fn kind(&self, region: Region) -> String {
        region.kind()
    }

    fn mark(&self, region: Region) -> Option<String> {
        let kind = region.kind();
        match region {
            Region::Step | Region::Iteration | Region::Chunk { .. } => None,
            Region::Inputs { .. } | Region::Losses { .. } => Some(kind),
            Region::Forward { layer, .. }
            | Region::Backward { layer, .. }
            | Region::WeightGradients { layer, .. }
            | Region::Module { layer, .. } => Some(format!("{kind} of layer {layer}")),
            Region::Hook { place, .. } => Some(format!("{kind} of {place}")),
            other => Some(other.to_string()),
        }
    }
}
