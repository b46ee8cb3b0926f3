//! The options of CUDA graphs, made from a run's settings and checked.

use common::UserError;
use engine::graph_options::{GraphModule, GraphOptions, GraphSelection, Scope};
use engine::layer_partition::StageLayers;
use engine::model::layer_modules;
use graph_manager::Mempool;

use super::model::ModelPlan;
use crate::config::checks::require;
use crate::config::{CudaGraphConfig, GraphMempool, GraphScope, PipelineSchedule, RecomputeGranularity, RunConfig};

/// The options of a rank's graphs of that model. `layers` are those of any rank.
///
/// # Errors
/// The first rule that is broken.
pub(super) fn graph_options(
    config: &RunConfig,
    model: &ModelPlan,
    layers: &StageLayers,
) -> Result<GraphOptions, UserError> {
    let graph = &config.cuda_graph;
    if graph.enable {
        require(graph.warmup_steps >= 1, || {
            UserError::new(
                "cuda_graph.warmup_steps = 0",
                "every collective runs at least once before it is captured",
                "set cuda_graph.warmup_steps = 1",
            )
        })?;
        check_selection(config, model, layers)?;
        check_overlap(config)?;
    }
    Ok(GraphOptions {
        enable: graph.enable,
        scope: match graph.scope {
            // With the scope `auto` the run chooses a scope when it starts.
            GraphScope::PerLayer | GraphScope::Auto => Scope::PerLayer,
            GraphScope::PerChunk => Scope::PerChunk,
            GraphScope::FullIteration => Scope::FullIteration,
        },
        only: GraphSelection {
            modules: graph.modules.iter().filter_map(|word| GraphModule::of(word)).collect(),
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

/// What becomes one graph, in words: the scope, and the modules and layers that it is limited to.
pub fn graph_scope(graph: &CudaGraphConfig) -> String {
    let modules = graph.modules.join(", ");
    let layers = graph.layers.iter().map(usize::to_string).collect::<Vec<String>>().join(", ");
    match (modules.is_empty(), layers.is_empty()) {
        (true, true) => graph.scope.to_string(),
        (false, true) => format!("{} (only {modules})", graph.scope),
        (true, false) => format!("{} (only layers {layers})", graph.scope),
        (false, false) => format!("{} (only {modules} of layers {layers})", graph.scope),
    }
}

/// Refuses overlapping microbatches with a schedule that splits backwards.
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
fn check_selection(config: &RunConfig, model: &ModelPlan, layers: &StageLayers) -> Result<(), UserError> {
    let graph = &config.cuda_graph;
    let modules = format!("cuda_graph.modules = {:?}", graph.modules);
    let chosen_layers = format!("cuda_graph.layers = {:?}", graph.layers);
    for (is_set, setting) in [(!graph.modules.is_empty(), &modules), (!graph.layers.is_empty(), &chosen_layers)] {
        require(!is_set || graph.scope == GraphScope::PerLayer, || {
            UserError::new(
                format!("{setting} with cuda_graph.scope = \"{}\"", graph.scope),
                "under per_chunk a graph contains a chunk of layers, under full_iteration the whole step",
                "set cuda_graph.scope = \"per_layer\", or leave the modules and layers out",
            )
        })?;
    }
    let head = layers.total - 1;
    if let Some(layer) = graph.layers.iter().find(|layer| **layer > head) {
        let last = if matches!(model, ModelPlan::Mlp(_)) { "the loss" } else { "the head" };
        return Err(UserError::new(
            format!("{chosen_layers}: there is no layer {layer}"),
            format!("layers are counted from 0, and the last, {last}, is {head}"),
            format!("name layers from 0 to {head}"),
        ));
    }
    if graph.modules.is_empty() {
        return Ok(());
    }
    let ModelPlan::Gpt(shape) = model else {
        let (what, rule) = (format!("{modules} with model.kind = \"mlp\""), "an MLP's layers are not made of modules");
        return Err(UserError::new(what, rule, "set cuda_graph.layers instead"));
    };
    let named: Vec<GraphModule> = graph.modules.iter().filter_map(|word| GraphModule::of(word)).collect();
    check_experts(&named, &modules)?;
    let by_layer = layer_modules(shape, layers);
    let missing = named.iter().find(|module| !by_layer.iter().flatten().any(|of_model| *of_model == module.whole()));
    if let Some(module) = missing {
        return Err(not_in_model(*module, &modules));
    }
    let has_some = |layer: usize| by_layer[layer].iter().any(|of| named.iter().any(|module| module.whole() == *of));
    let has_all = |layer: usize| by_layer[layer].iter().all(|of| named.contains(of));
    let splits_blocks = (0..=head).any(|layer| has_some(layer) && !has_all(layer));
    require(!splits_blocks || config.recompute.granularity != RecomputeGranularity::Full, || {
        UserError::new(
            format!("{modules} with recompute.granularity = \"full\""),
            "backward recomputes whole blocks, so a block's modules cannot be graphs of their own",
            "name both attention and mlp (moe for experts), or set recompute.granularity = \"selective\"",
        )
    })?;
    require(graph.layers.is_empty() || graph.layers.iter().any(|layer| has_some(*layer)), || {
        UserError::new(
            format!("{modules} with {chosen_layers}"),
            format!("layer 0 is the embedding, layer {head} the head, and blocks are between"),
            "name a module that these layers have, or leave one of the two out",
        )
    })
}

/// Fails on words for a layer of experts that do not go together.
fn check_experts(named: &[GraphModule], modules: &str) -> Result<(), UserError> {
    let [whole, router, row_order] =
        [GraphModule::EXPERTS, GraphModule::ROUTER, GraphModule::ROW_ORDER].map(|module| named.contains(&module));
    require(!(whole && router), || {
        let rule = "moe is the whole layer of experts, and moe_router its first half";
        UserError::new(modules, rule, "name one of the two")
    })?;
    require(router || !row_order, || {
        let rule = "moe_preprocess, the order of rows by expert, adds to the graph of moe_router";
        UserError::new(modules, rule, "name moe_router too, or moe alone for the whole layer")
    })
}

/// The error for a module that no layer of the model has.
fn not_in_model(module: GraphModule, modules: &str) -> UserError {
    let (of_model, rule, fix) = match module {
        GraphModule::ATTENTION => ("model.attention = false", "blocks have no attention then", "leave attention out"),
        GraphModule::FEED_FORWARD => {
            ("model.experts", "all blocks have experts, and mlp is a dense layer", "name moe instead of mlp")
        }
        _ => {
            let fix = "name embedding, attention, mlp or head, or set model.experts";
            ("model.experts = 0", "moe, moe_router and moe_preprocess are modules of experts", fix)
        }
    };
    UserError::new(format!("{modules} with {of_model}"), rule, fix)
}

#[cfg(test)]
mod tests {
    use crate::config::plan::RunPlan;
    use crate::config::sources::ConfigSources;

    #[test]
    fn microbatches_overlap_in_every_layout_but_zero_bubble() {
        let problem = |settings: &str| {
            let all = "cuda_graph.enable=true cuda_graph.overlap_microbatches=true";
            let sources = ConfigSources::of_pairs(&format!("{all} {settings}")).unwrap();
            RunPlan::new(sources.resolve(), 2).err().map(|error| error.to_string())
        };
        assert_eq!(problem(""), None);
        assert_eq!(problem("parallel.tensor=2"), None);
        assert_eq!(problem("parallel.pipeline=2"), None);
        let text = problem("parallel.pipeline=2 parallel.pipeline_schedule=zero_bubble").unwrap();
        assert!(
            text.contains("overlap_microbatches = true with parallel.pipeline_schedule = \"zero_bubble\""),
            "{text}"
        );
        assert!(text.contains("set parallel.pipeline_schedule = \"1f1b\""), "{text}");
    }
}
