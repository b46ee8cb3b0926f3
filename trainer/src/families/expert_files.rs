//! The common parts of the files of families with experts: a router, and tensors of each expert.

use common::UserError;
use device::ops::Score;
use engine::model::{Experts, GptShape};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{FileTensor, Keys, NamedOptions, Requirement, TensorNames};
use super::llama_files;
use super::requirements::{EXPERTS, NO_BIAS, NO_QKV_BIAS, PRE_NORM};

/// The numbers of experts, by the names of most families.
pub(super) const KEYS: Keys = Keys { read: options, write: |shape| config_json(shape, "num_experts") };
/// The same of families with another name for the first.
pub(super) const LOCAL_KEYS: Keys = Keys { read: options, write: |shape| config_json(shape, "num_local_experts") };

/// The names of a block's tensors.
pub(super) struct Names {
    /// The module with router and experts.
    pub(super) module: &'static str,
    /// An expert's gate, gated values, and the product after both.
    pub(super) matrices: [&'static str; 3],
}

/// The names of most families.
const NAMES: Names = Names { module: "mlp", matrices: ["gate_proj", "up_proj", "down_proj"] };

/// How the files of most families hold parameters.
pub(super) const TENSORS: TensorNames = TensorNames { of: of_most, fused, ..llama_files::TENSORS };

/// The tensors that hold one of our parameters in the files of most families.
pub(super) fn of_most(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    tensors(&NAMES, shape, parameter)
}

/// The requirements of all families with experts, without the requirements of Llama's kind.
pub(super) const REQUIREMENTS: &[Requirement] = &[NO_BIAS, NO_QKV_BIAS, PRE_NORM];

/// The requirements of families whose experts a softmax weighs, and none of which every token passes.
pub(super) const PLAIN_ROUTERS: &[Requirement] = &[
    EXPERTS,
    (|shape| every(shape, |experts| experts.shared_ffn == 0), "model.shared_expert_ffn"),
    (
        |shape| every(shape, |experts| experts.router.score == Score::Softmax),
        "a model.router_score other than \"softmax\"",
    ),
    (|shape| every(shape, |experts| experts.router.scale == 1.0), "a model.router_scale other than 1"),
    NO_GROUPS,
    (|shape| every(shape, |experts| experts.bias_update_rate.is_none()), "model.router_bias = true"),
];

/// The requirement of a family whose tokens choose from all experts.
const NO_GROUPS: Requirement =
    (|shape| every(shape, |experts| experts.router.groups.is_none()), "a model.expert_groups other than 1");

/// The requirement of a family without dense blocks.
pub(super) const NO_DENSE_BLOCKS: Requirement = (
    |shape| shape.experts.is_none() || (0..shape.layers).all(|block| shape.block_experts(block).is_some()),
    "dense blocks in model.expert_pattern",
);

/// Whether a shape's experts, if any, are as `is` says.
pub(super) fn every(shape: &GptShape, is: fn(&Experts) -> bool) -> bool {
    shape.experts.as_ref().is_none_or(is)
}

/// The key of a family whose experts may differ in normalisation: whether the scores of a token's experts have the sum 1.
pub(super) const NORMALISED: Keys = Keys {
    read: |config| Ok(vec![("router_normalise", config.flag_or("norm_topk_prob", false)?.into())]),
    write: |shape| json!({ "norm_topk_prob": value(shape, |experts| experts.router.normalise) }),
};

/// The key of a family with one width: `model.ffn` is read from it, and experts have it.
pub(super) const FFN_IS_OF_EXPERTS: Keys = Keys {
    read: |_| Ok(Vec::new()),
    write: |shape| json!({ "intermediate_size": value(shape, |experts| experts.ffn) }),
};

/// The numbers of experts in a `config.json`. Version 5 of `transformers` may write the other name of the first.
///
/// # Errors
/// A value that the trainer cannot compute with, or two that differ.
fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let local = config.usual_whole("num_local_experts")?;
    let count = config.whole_or("num_experts", local)?;
    if config.whole_or("num_local_experts", count)? != count {
        return Err(config.refuse("num_local_experts", "it is num_experts, if both are there"));
    }
    let per_token = config.usual_whole("num_experts_per_tok")?;
    Ok(vec![("experts", count.into()), ("experts_per_token", per_token.into())])
}

/// The numbers of experts of a shape. `count` is the name of the first.
fn config_json(shape: &GptShape, count: &str) -> Json {
    json!({
        count: value(shape, |experts| experts.count),
        "num_experts_per_tok": value(shape, |experts| experts.per_token),
    })
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

/// The tensor that has one of our parameters in the memory of `transformers` 5, and in files saved from that memory.
fn fused(parameter: &str) -> Option<String> {
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
