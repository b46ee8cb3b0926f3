//! Settings that mean nothing beside others: told of, not refused, for they do no harm and may stand in a file that other
//! runs share.

use crate::options::find;
use crate::plan::RunPlan;

/// A line for each. A run that is only `measured` has other steps than its own.
pub fn notices(plan: &RunPlan, measured: bool) -> Vec<String> {
    let mut notices = Vec::new();
    let mut tell = |unused: bool, setting: String, why: &str| {
        if unused {
            notices.push(format!("{setting} has no effect: {why}"));
        }
    };
    let (parallel, graph) = (&plan.config.parallel, &plan.config.cuda_graph);
    let (optimizer, recompute) = (&plan.config.optimizer, &plan.config.recompute);
    let steps = plan.config.train.steps;
    tell(
        parallel.sequence_parallel && parallel.tensor == 1,
        "parallel.sequence_parallel = true".into(),
        "with parallel.tensor = 1 no ranks share a layer and its tokens",
    );
    let off = "without cuda_graph.enable (--enable-cuda-graph) nothing is captured";
    for (key, value) in [
        ("cuda_graph.scope", format!("{:?}", graph.scope)),
        ("cuda_graph.warmup_steps", graph.warmup_steps.to_string()),
        ("cuda_graph.share_io_buffers", graph.share_io_buffers.to_string()),
        ("cuda_graph.capture_optimizer", graph.capture_optimizer.to_string()),
    ] {
        tell(!graph.enable && !is_default(key, &value), format!("{key} = {value}"), off);
    }
    let decay = format!("optimizer.decay_steps = {}", optimizer.decay_steps);
    let wsd = optimizer.schedule == "wsd";
    tell(
        !wsd && !is_default("optimizer.decay_steps", &optimizer.decay_steps.to_string()),
        decay.clone(),
        "it is for optimizer.schedule = \"wsd\"; other decays end with the run",
    );
    tell(
        optimizer.kind != "sgd" && optimizer.momentum != 0.0,
        format!("optimizer.momentum = {}", optimizer.momentum),
        "it is for optimizer.kind = \"sgd\"",
    );
    tell(
        recompute.granularity != "full" && recompute.layers != 1,
        format!("recompute.layers = {}", recompute.layers),
        "it is for recompute.granularity = \"full\"",
    );
    let left = steps.saturating_sub(optimizer.warmup_steps);
    if wsd && !measured && optimizer.decay_steps > left {
        notices.push(format!(
            "{decay} is cut to the {left} steps that optimizer.warmup_steps = {} leaves of train.steps = {steps}",
            optimizer.warmup_steps
        ));
    }
    if graph.enable && !measured && graph.warmup_steps >= steps {
        notices.push(format!(
            "no training step is captured: train.steps = {steps} with cuda_graph.warmup_steps = {}",
            graph.warmup_steps
        ));
    }
    notices
}

/// Whether an option has the value that it has unset.
fn is_default(key: &str, value: &str) -> bool {
    find(key).is_some_and(|option| option.default == value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;
    use crate::presets::PRESETS;
    use crate::recipes::RECIPES;

    /// What is told of `key=value` pairs.
    fn told(text: &str) -> Vec<String> {
        let mut layers = Layers::default();
        for (key, value) in text.split_whitespace().map(|pair| pair.split_once('=').unwrap()) {
            layers.set(key, value, "test").unwrap();
        }
        notices(&RunPlan::new(layers.resolve(), 1).unwrap(), false)
    }

    #[test]
    fn each_setting_without_effect_is_one_line_and_none_beside_what_it_is_for() {
        for (setting, beside, says) in [
            ("parallel.sequence_parallel=true", "", "parallel.tensor = 1"),
            ("cuda_graph.scope=full_iteration", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.warmup_steps=3", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.share_io_buffers=false", "cuda_graph.enable=true", "--enable-cuda-graph"),
            ("cuda_graph.capture_optimizer=false", "cuda_graph.enable=true", "--enable-cuda-graph"),
            (
                "cuda_graph.enable=true cuda_graph.warmup_steps=5 train.steps=5",
                "train.steps=6",
                "no training step is captured",
            ),
            ("optimizer.decay_steps=900", "optimizer.schedule=wsd", "optimizer.schedule = \"wsd\""),
            ("optimizer.momentum=0.9", "optimizer.kind=sgd", "optimizer.kind = \"sgd\""),
            ("recompute.layers=2", "recompute.granularity=full", "recompute.granularity = \"full\""),
            (
                "optimizer.schedule=wsd optimizer.decay_steps=900 train.steps=60",
                "train.steps=950",
                "is cut to the 10 steps",
            ),
        ] {
            let lines = told(setting);
            assert!(lines.len() == 1 && lines[0].contains(says), "{setting}: {lines:?}");
            if !beside.is_empty() {
                assert_eq!(told(&format!("{setting} {beside}")), [""; 0], "{setting} {beside}");
            }
        }
    }

    #[test]
    fn presets_and_recipes_have_no_such_settings() {
        for preset in PRESETS {
            for graphs in ["", "cuda_graph.enable=true"] {
                assert_eq!(told(&format!("model.preset={preset} {graphs}")), [""; 0], "{preset}");
            }
        }
        for (name, text) in RECIPES {
            let mut layers = Layers::default();
            layers.read_text(text, name).unwrap();
            assert_eq!(notices(&RunPlan::new(layers.resolve(), 1).unwrap(), false), [""; 0], "{name}");
        }
    }
}
