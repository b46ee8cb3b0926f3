//! The common parts of the files of families with experts: a router, and tensors of each expert.

use common::UserError;
use device::ops::Score;
use engine::model::{Experts, GptShape, NormPlacement};
use serde_json::Value as Json;

use super::config_json::ConfigJson;
use super::family::{FileTensor, ModelOptions};
use super::llama_files;

/// The name of the choice that a dense model lacks.
pub(super) const NO_EXPERTS: &str = "no model.experts";

/// The values that `transformers` takes if a family's `config.json` lacks a key.
pub(super) struct Absent {
    /// `num_experts` or `num_local_experts`.
    pub(super) count: i64,
    /// `num_experts_per_tok`.
    pub(super) per_token: i64,
}

/// The names of a block's tensors.
pub(super) struct Names {
    /// The module with router and experts.
    pub(super) module: &'static str,
    /// Of an expert the gate, the gated values, and the product after them.
    pub(super) matrices: [&'static str; 3],
}

/// The names of most families.
pub(super) const NAMES: Names = Names { module: "mlp", matrices: ["gate_proj", "up_proj", "down_proj"] };

/// The requirements of all these families for a shape; see
/// [`HuggingFace::requirements`](super::HuggingFace::requirements).
pub(super) fn requirements(shape: &GptShape) -> Vec<(bool, &'static str)> {
    let every = |is: fn(&Experts) -> bool| shape.experts.as_ref().is_none_or(is);
    let mut all = llama_files::of_dense_or_experts(shape);
    all.extend([
        (shape.experts.is_some(), NO_EXPERTS),
        (every(|experts| experts.shared_ffn == 0), "model.shared_expert_ffn"),
        (every(|experts| experts.router.score == Score::Softmax), "a model.router_score other than \"softmax\""),
        (every(|experts| experts.router.scale == 1.0), "a model.router_scale other than 1"),
        (every(|experts| experts.bias_update_rate.is_none()), "model.router_bias = true"),
        (!shape.bias, "model.bias = true"),
        (!shape.qkv_bias, "model.qkv_bias = true"),
        (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
    ]);
    all
}

/// The requirement of a family without dense blocks.
pub(super) fn without_dense_blocks(shape: &GptShape) -> (bool, &'static str) {
    let are_in_all = (0..shape.layers).all(|block| shape.block_experts(block).is_some());
    (shape.experts.is_none() || are_in_all, "dense blocks in model.expert_pattern")
}

/// The numbers of experts in a `config.json`. Version 5 of `transformers` may write the other name of the first.
///
/// # Errors
/// A value that the trainer cannot compute with, or two that differ.
pub(super) fn options(config: &ConfigJson<'_>, absent: &Absent) -> Result<ModelOptions, UserError> {
    let local = config.whole_or("num_local_experts", absent.count)?;
    let count = config.whole_or("num_experts", local)?;
    if config.whole_or("num_local_experts", count)? != count {
        return Err(config.refuse("num_local_experts", "it is num_experts, if both are there"));
    }
    let per_token = config.whole_or("num_experts_per_tok", absent.per_token)?;
    Ok(vec![("model.experts", count.into()), ("model.experts_per_token", per_token.into())])
}

/// The keys of `config.json` that all these families have. `count` is the name of the number of experts.
pub(super) fn config_json(shape: &GptShape, count: &str) -> serde_json::Map<String, Json> {
    let mut config = llama_files::config_json(shape);
    config.insert(count.into(), value(shape, |experts| experts.count));
    config.insert("num_experts_per_tok".into(), value(shape, |experts| experts.per_token));
    config
}

/// The value of a key about a shape's experts.
pub(super) fn value<T: Into<Json>>(shape: &GptShape, of: impl Fn(&Experts) -> T) -> Json {
    shape.experts.as_ref().map_or(Json::Null, |experts| of(experts).into())
}

/// The tensors that hold one of our parameters: each expert has its own.
pub(super) fn tensors(names: &Names, shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let (Some(experts), Some((block, inner))) = (&shape.experts, inner(parameter)) else {
        return llama_files::tensors(shape, parameter);
    };
    let name = |inner: &str| format!("model.layers.{block}.{}.{inner}.weight", names.module);
    let of_all = |matrices: &[&str], rows: usize| {
        let pairs = (0..experts.count).flat_map(|expert| matrices.iter().map(move |matrix| (expert, matrix)));
        pairs.map(|(expert, matrix)| FileTensor::rows(name(&format!("experts.{expert}.{matrix}")), rows)).collect()
    };
    let [gate, up, down] = names.matrices;
    match inner {
        "router.weight" => FileTensor::whole(name("gate")),
        "experts.c_fc.weight" => of_all(&[gate, up], experts.ffn),
        "experts.c_proj.weight" => of_all(&[down], shape.hidden),
        _ => llama_files::tensors(shape, parameter),
    }
}

/// The tensor that has one of our parameters in the memory of `transformers` 5, and in files that were saved as it is
/// there.
pub(super) fn fused(parameter: &str) -> Option<String> {
    let (block, inner) = inner(parameter)?;
    let theirs = match inner {
        "router.weight" => "gate.weight",
        "experts.c_fc.weight" => "experts.gate_up_proj",
        "experts.c_proj.weight" => "experts.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{block}.mlp.{theirs}"))
}

/// The block of a feed-forward layer's parameter, and the parameter's name there.
fn inner(parameter: &str) -> Option<(&str, &str)> {
    parameter.strip_prefix("h.")?.split_once(".mlp.")
}
