//! What becomes graphs: the options of a run, checked.

use common::UserError;
use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::layer_partition::StageLayers;
use graph_manager::Mempool;

use crate::config::checks::require;
use crate::config::{
    CudaGraphConfig, GraphMempool, GraphScope, ModelKind, PipelineSchedule, RecomputeGranularity, RunConfig,
};

/// The options of a rank's graphs. `layers` are those of any rank.
///
/// # Errors
/// The first rule that is broken.
pub(super) fn graph_options(config: &RunConfig, layers: &StageLayers) -> Result<GraphOptions, UserError> {
    let graph = &config.cuda_graph;
    if graph.enable {
        require(graph.warmup_steps >= 1, || {
            UserError::new(
                "cuda_graph.warmup_steps = 0",
                "every collective runs at least once before it is captured",
                "set cuda_graph.warmup_steps = 1",
            )
        })?;
        check_selection(config, layers)?;
        check_overlap(config)?;
    }
    Ok(GraphOptions {
        enable: graph.enable,
        scope: match graph.scope {
            // A run whose scope is `auto` chooses at its start.
            GraphScope::PerLayer | GraphScope::Auto => Scope::PerLayer,
            GraphScope::FullIteration => Scope::FullIteration,
        },
        only: GraphSelection {
            modules: graph.modules.iter().copied().collect(),
            layers: graph.layers.iter().copied().collect(),
        },
        mempool: match graph.mempool {
            GraphMempool::PerMicrobatch => Mempool::PerMicrobatch,
            GraphMempool::Single => Mempool::Single,
        },
        share_io_buffers: graph.share_io_buffers,
        capture_optimizer: graph.capture_optimizer,
        warmup_steps: graph.warmup_steps,
        poison: false,
        check_replays: false,
    })
}

/// The modules as in a TOML file.
pub(super) fn words(modules: &[GraphModule]) -> String {
    let words: Vec<String> = modules.iter().map(|module| format!("\"{module}\"")).collect();
    format!("[{}]", words.join(", "))
}

/// What becomes one graph, in words: the scope, and the modules and layers that it is limited to.
pub fn graph_scope(graph: &CudaGraphConfig) -> String {
    let listed = |words: Vec<String>| words.join(", ");
    let modules = listed(graph.modules.iter().map(GraphModule::to_string).collect());
    let layers = listed(graph.layers.iter().map(usize::to_string).collect());
    match (modules.is_empty(), layers.is_empty()) {
        (true, true) => graph.scope.to_string(),
        (false, true) => format!("{} (only {modules})", graph.scope),
        (true, false) => format!("{} (only layers {layers})", graph.scope),
        (false, false) => format!("{} (only {modules} of layers {layers})", graph.scope),
    }
}

/// Fails on microbatches that overlap where backwards are split.
fn check_overlap(config: &RunConfig) -> Result<(), UserError> {
    let splits = config.parallel.pipeline_schedule == PipelineSchedule::ZeroBubble;
    require(!config.cuda_graph.overlap_microbatches || !splits, || {
        UserError::new(
            "cuda_graph.overlap_microbatches = true with parallel.pipeline_schedule = \"zero_bubble\"",
            "microbatches overlap in 1F1B, with one or several chunks a stage",
            "set parallel.pipeline_schedule = \"1f1b\", or cuda_graph.overlap_microbatches = false",
        )
    })
}

/// Fails on modules and layers that the scope or the model does not have, or that have nothing in common.
fn check_selection(config: &RunConfig, layers: &StageLayers) -> Result<(), UserError> {
    let graph = &config.cuda_graph;
    let modules = format!("cuda_graph.modules = {}", words(&graph.modules));
    let chosen_layers = format!("cuda_graph.layers = {:?}", graph.layers);
    for (is_set, setting) in [(!graph.modules.is_empty(), &modules), (!graph.layers.is_empty(), &chosen_layers)] {
        require(!is_set || graph.scope == GraphScope::PerLayer, || {
            UserError::new(
                format!("{setting} with cuda_graph.scope = \"{}\"", graph.scope),
                "under full_iteration the whole step is one graph",
                "set cuda_graph.scope = \"per_layer\", or leave the modules and layers out",
            )
        })?;
    }
    let head = layers.total - 1;
    if let Some(layer) = graph.layers.iter().find(|layer| **layer > head) {
        let last = if config.model.kind == ModelKind::Mlp { "the loss" } else { "the head" };
        return Err(UserError::new(
            format!("{chosen_layers}: there is no layer {layer}"),
            format!("layers are counted from 0, and the last, {last}, is {head}"),
            format!("name layers from 0 to {head}"),
        ));
    }
    if graph.modules.is_empty() {
        return Ok(());
    }
    require(config.model.kind == ModelKind::Gpt, || {
        let rule = "an MLP's layers are not made of modules";
        UserError::new(format!("{modules} with model.kind = \"mlp\""), rule, "set cuda_graph.layers instead")
    })?;
    let named = |module| graph.modules.contains(&module);
    let (attention, feed_forward) = (named(GraphModule::Attention), named(GraphModule::FeedForward));
    require(config.model.attention || !attention, || {
        let rule = "blocks have no attention then";
        UserError::new(format!("{modules} with model.attention = false"), rule, "leave attention out")
    })?;
    let splits_blocks = config.model.attention && attention != feed_forward;
    require(!splits_blocks || config.recompute.granularity != RecomputeGranularity::Full, || {
        UserError::new(
            format!("{modules} with recompute.granularity = \"full\""),
            "backward recomputes whole blocks, so a block's modules cannot be graphs of their own",
            "name both attention and mlp, or set recompute.granularity = \"selective\"",
        )
    })?;
    let is_captured = |layer: &usize| match *layer {
        0 => named(GraphModule::Embedding),
        layer if layer == head => named(GraphModule::Head),
        _ => attention || feed_forward,
    };
    require(graph.layers.is_empty() || graph.layers.iter().any(is_captured), || {
        UserError::new(
            format!("{modules} with {chosen_layers}"),
            format!("layer 0 is the embedding, layer {head} the head, and blocks are between"),
            "name a module that these layers have, or leave one of the two out",
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::config::layers::Layers;
    use crate::config::plan::RunPlan;

    #[test]
    fn microbatches_overlap_in_every_layout_but_zero_bubble() {
        let problem = |settings: &[(&str, &str)]| {
            let mut layers = Layers::default();
            let all = [("cuda_graph.enable", "true"), ("cuda_graph.overlap_microbatches", "true")];
            for (key, value) in all.iter().chain(settings) {
                layers.set(key, value, "test").unwrap();
            }
            RunPlan::new(layers.resolve(), 2).err().map(|error| error.to_string())
        };
        assert_eq!(problem(&[]), None);
        assert_eq!(problem(&[("parallel.tensor", "2")]), None);
        assert_eq!(problem(&[("parallel.pipeline", "2")]), None);
        let zero_bubble = [("parallel.pipeline", "2"), ("parallel.pipeline_schedule", "zero_bubble")];
        let text = problem(&zero_bubble).unwrap();
        assert!(
            text.contains("overlap_microbatches = true with parallel.pipeline_schedule = \"zero_bubble\""),
            "{text}"
        );
        assert!(text.contains("set parallel.pipeline_schedule = \"1f1b\""), "{text}");
    }
}
