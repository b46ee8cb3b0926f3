//! Frozen weights that lie as codes, and what they go with.

use common::UserError;
use device::ops::CODE_BLOCK;
use engine::model::{AttentionKind, GptShape, Latent};
use parallel::Axis;

use super::freeze::FrozenNames;
use crate::config::checks::require;
use crate::config::plan::model::ModelPlan;
use crate::config::plan::ranks::ParallelPlan;
use crate::config::{Fp8Choice, RunConfig};

/// Fails on frozen weights as codes that a run cannot have.
///
/// # Errors
/// Names the setting that does not go with them.
pub(crate) fn check_frozen_weights(
    config: &RunConfig,
    model: &ModelPlan,
    parallel: &ParallelPlan,
    frozen: &FrozenNames,
) -> Result<(), UserError> {
    let form = config.precision.frozen_weights;
    if form.codes().is_none() {
        return Ok(());
    }
    let of_blocks = model.architecture().specs.into_iter().filter(|spec| spec.is_block_weight);
    let is_any = of_blocks.into_iter().any(|spec| frozen.has(&spec.name));
    for (excludes, with, rule, fix) in [
        (
            !is_any,
            "no frozen weight of a linear layer in a block".to_string(),
            "it is the form of weights that keep their values",
            "add adapters (--lora-rank), or freeze weights by name (--freeze), or leave it out",
        ),
        (
            config.precision.fp8 != Fp8Choice::None,
            format!("precision.fp8 = \"{}\"", config.precision.fp8),
            "products read the values of codes in 16 or 32 bits",
            "set precision.fp8 = \"none\"",
        ),
        (
            config.cuda_graph.overlap_microbatches,
            "cuda_graph.overlap_microbatches = true".to_string(),
            "one microbatch at a time uses the buffers of whole weights",
            "leave out --cuda-graph-overlap-microbatches",
        ),
    ] {
        let what = format!("precision.frozen_weights = \"{form}\" with {with}");
        require(!excludes, || UserError::new(what, rule, fix))?;
    }
    let ModelPlan::Gpt(shape) = model else { return Ok(()) };
    match widths(shape, parallel).into_iter().find(|(_, width)| !width.is_multiple_of(CODE_BLOCK)) {
        None => Ok(()),
        Some((what, width)) => Err(UserError::new(
            format!("precision.frozen_weights = \"{form}\" with rows of {width} values ({what})"),
            format!("{CODE_BLOCK} values of a row share a scale, on each rank"),
            "divide layers over fewer ranks, or set precision.frozen_weights = \"compute\"",
        )),
    }
}

/// The values of a row of the linear layers of blocks on a rank, with the settings that decide them.
fn widths(shape: &GptShape, parallel: &ParallelPlan) -> Vec<(&'static str, usize)> {
    let tensor = parallel.mesh.size(Axis::Tensor);
    let mut widths = vec![("model.hidden", shape.hidden)];
    let of_heads = match shape.attention {
        AttentionKind::Latent(Latent { query_rank, rank, head }) => {
            widths.push(("model.kv_latent", rank));
            widths.extend(query_rank.map(|rank| ("model.query_latent", rank)));
            head.value
        }
        _ => shape.head_dim(),
    };
    widths.push(("channels of model.heads over parallel.tensor", shape.heads * of_heads / tensor));
    if (0..shape.layers).any(|block| shape.block_experts(block).is_none()) {
        widths.push(("model.ffn over parallel.tensor", shape.ffn / tensor));
    }
    if let Some(experts) = &shape.experts {
        let of_expert = parallel.mesh.sizes().expert_tensor;
        widths.push(("model.expert_ffn over parallel.expert_tensor", experts.ffn / of_expert));
        widths.push(("model.shared_expert_ffn over parallel.tensor", experts.shared_ffn / tensor));
    }
    widths
}

#[cfg(test)]
mod tests {
    use crate::config::ConfigSources;
    use crate::config::plan::RunPlan;

    #[test]
    fn codes_are_refused_by_what_does_not_go_with_them() {
        let problem = |settings: &[&str]| {
            let mut sources = ConfigSources::default();
            let common = ["precision.frozen_weights=nf4", "model.preset=tiny-llama", "model.ffn=192"];
            for (key, value) in common.iter().chain(settings).map(|pair| pair.split_once('=').unwrap()) {
                sources.set(key, value, "test").unwrap();
            }
            RunPlan::new(sources.resolve(), 2).err().map(|error| error.to_string())
        };
        let lora = "model.lora_rank=4";
        assert_eq!(problem(&[lora]), None);
        assert_eq!(problem(&["optimizer.freeze=[\"h.0.*\"]", "parallel.data_parallel_sharding=optim_grads"]), None);
        assert_eq!(problem(&[lora, "parallel.data_parallel_sharding=optim_grads_params"]), None);
        for (settings, words) in [
            (&["model.layers=2"][..], "no frozen weight"),
            (&["optimizer.freeze=[\"wte.*\",\"h.*.bias\"]", "model.bias=true"], "no frozen weight"),
            (&[lora, "cuda_graph.enable=true", "cuda_graph.overlap_microbatches=true"], "overlap_microbatches"),
            (&[lora, "model.ffn=176"], "rows of 176 values (model.ffn over parallel.tensor)"),
            (&[lora, "parallel.tensor=2"], "over parallel.tensor"),
            (
                &["optimizer.freeze=[\"h.0.*\"]", "precision.compute=bf16", "precision.fp8=hybrid"],
                "with precision.fp8 = \"hybrid\"",
            ),
        ] {
            let error = problem(settings).unwrap_or_default();
            assert!(error.contains(words) && error.contains("frozen_weights = \"nf4\""), "{settings:?}: {error}");
        }
    }
}
