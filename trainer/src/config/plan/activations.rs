//! The outputs of layers and modules that a run prints.

use common::UserError;
use engine::graph_options::GraphModule;
use engine::hooks::HookPlace;
use engine::layer_partition::StageLayers;
use engine::model::{AttentionKind, layer_modules};

use super::model::ModelPlan;
use crate::config::checks::require;
use crate::config::{GraphScope, RecomputeGranularity, RunConfig};

/// The outputs that are printed, by the configuration's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintedActivations(pub Vec<(String, HookPlace)>);

impl PrintedActivations {
    /// The outputs of `logging.print_activations`.
    ///
    /// # Errors
    /// A name that the model does not have; settings that allow no printing.
    pub(crate) fn new(config: &RunConfig, model: &ModelPlan) -> Result<PrintedActivations, UserError> {
        let names = &config.logging.print_activations;
        if names.is_empty() {
            return Ok(PrintedActivations::default());
        }
        let what = format!("logging.print_activations = {names:?}");
        let ModelPlan::Gpt(shape) = model else {
            let rule = "an MLP has neither embedding nor blocks";
            return Err(UserError::new(format!("{what} with model.kind = \"mlp\""), rule, "leave it out"));
        };
        check_settings(config, &what)?;
        let modules = layer_modules(shape, &StageLayers::whole(shape.layers + 2));
        let place = |name: &String| {
            hook_place(name, &modules).map(|place| (name.clone(), place)).ok_or_else(|| {
                let last = shape.layers - 1;
                UserError::new(
                    format!("logging.print_activations = [{name:?}]"),
                    format!(
                        "the model has embedding, h.0 to h.{last}, and in each block mlp{}{}",
                        if shape.experts.is_some() { " (moe where it has experts)" } else { "" },
                        if shape.attention != AttentionKind::None { " and attention" } else { "" }
                    ),
                    format!("for example logging.print_activations = [\"embedding\", \"h.{last}\"]"),
                )
            })
        };
        names.iter().map(place).collect::<Result<_, _>>().map(PrintedActivations)
    }
}

/// The hook's place of that name in a model whose layers have the given modules.
fn hook_place(name: &str, modules: &[Vec<GraphModule>]) -> Option<HookPlace> {
    if name == "embedding" {
        return Some(HookPlace { layer: 0, module: None });
    }
    let mut words = name.strip_prefix("h.")?.split('.');
    let block: usize = words.next()?.parse().ok()?;
    let of_block = modules[1..modules.len() - 1].get(block)?;
    let module = match words.next() {
        None => None,
        Some(word) => Some(*of_block.iter().find(|module| module.to_string() == word)?),
    };
    words.next().is_none().then_some(HookPlace { layer: block + 1, module })
}

fn check_settings(config: &RunConfig, what: &str) -> Result<(), UserError> {
    let graph = &config.cuda_graph;
    let goes_around = matches!(graph.scope, GraphScope::PerLayer | GraphScope::Auto);
    require(!graph.enable || goes_around, || {
        UserError::new(
            format!("{what} with cuda_graph.scope = \"{}\"", graph.scope),
            "the host waits for what is printed, between the graphs of layers",
            "set cuda_graph.scope = \"per_layer\" or \"auto\"",
        )
    })?;
    require(!graph.enable || !graph.overlap_microbatches, || {
        let rule = "the host waits for what is printed, so microbatches do not overlap";
        UserError::new(format!("{what} with cuda_graph.overlap_microbatches = true"), rule, "leave one of the two out")
    })?;
    require(config.recompute.granularity != RecomputeGranularity::Full, || {
        UserError::new(
            format!("{what} with recompute.granularity = \"full\""),
            "groups of blocks run as one layer then, whose blocks have no output of their own",
            "set recompute.granularity = \"selective\"",
        )
    })
}

#[cfg(test)]
mod tests {
    use engine::model::GptShape;

    use super::*;

    #[test]
    fn names_are_those_of_layers_and_of_modules_in_blocks() {
        let modules = |attention| {
            let shape = GptShape { layers: 4, attention, ..GptShape::default() };
            layer_modules(&shape, &StageLayers::whole(6))
        };
        let named = |name| {
            hook_place(name, &modules(AttentionKind::Grouped { sinks: false })).map(|place| (place.layer, place.module))
        };
        assert_eq!(named("embedding"), Some((0, None)));
        assert_eq!(named("h.3"), Some((4, None)));
        assert_eq!(named("h.0.attention"), Some((1, Some(GraphModule::ATTENTION))));
        assert_eq!(named("h.2.mlp"), Some((3, Some(GraphModule::FEED_FORWARD))));
        for wrong in ["h.4", "h.-1", "h", "h.1.norm", "h.1.mlp.up", "head", "wte"] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
        assert_eq!(hook_place("h.0.attention", &modules(AttentionKind::None)), None);
    }
}
