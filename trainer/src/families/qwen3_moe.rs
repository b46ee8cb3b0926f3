//! Qwen3 (Yang et al., 2025) with experts, in all blocks or some. `Qwen3MoeForCausalLM` in `transformers`.

use common::UserError;
use engine::model::GptShape;
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::{ConfigJson, MOST_LAYERS};
use super::expert_files::{self, value};
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, sizes};
use super::llama_files;
use super::requirements::{NORM_OF_EACH_HEAD, NOT_GEMMA, OF_LLAMAS, SAME_WINDOWS};
use super::training::large_with_experts;
use super::windows;

/// The family.
pub const QWEN3_MOE: ModelFamily = ModelFamily {
    name: "Qwen3-MoE",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-6; activation = "swiglu"; position = "rotary"; rope_base = 1000000.0;
                bias = false; qk_norm = true; residual_init = "plain"; tie_embeddings = false"#,
    // config.json of Qwen/Qwen3-30B-A3B-Base. No block is dense, so nothing has the width `model.ffn`. Context and learning
    // rates are as for Qwen3.
    sizes: sizes! {
        "qwen3-30b-a3b", large_with_experts("3e-4", "0.001"),
            "layers = 48; hidden = 2048; heads = 32; kv_heads = 4; head_dim = 128; ffn = 6144; experts = 128;
             experts_per_token = 8; expert_ffn = 768; vocab = 151936; seq_length = 4096";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    requirements: &[
        OF_LLAMAS,
        NOT_GEMMA,
        expert_files::REQUIREMENTS,
        expert_files::PLAIN_ROUTERS,
        &[NORM_OF_EACH_HEAD, SAME_WINDOWS],
    ],
    absent: "num_key_value_heads = 4; max_position_embeddings = 32768; rms_norm_eps = 1e-6;
             rope_theta = 10000.0; num_local_experts = 128; num_experts_per_tok = 8",
    keys: &[
        llama_files::KEYS,
        llama_files::NO_ATTENTION_BIAS,
        expert_files::KEYS,
        Keys {
            read: |config| Ok(vec![("expert_ffn", config.whole_or("moe_intermediate_size", 768)?.into())]),
            write: |shape| json!({ "moe_intermediate_size": value(shape, |experts| experts.ffn) }),
        },
        expert_files::NORMALISED,
        Keys { read: pattern, write: dense_blocks },
        Keys { read: window, write: windows::used },
    ],
    tensors: expert_files::TENSORS,
};

fn window(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let has_windows = config.flag_or("use_sliding_window", false)?;
    let window = if has_windows { windows::sliding_window(config, 4096)? } else { None };
    Ok(windows::options(window, &[true]))
}

fn dense_blocks(shape: &GptShape) -> Json {
    let dense: Vec<usize> = (0..shape.layers).filter(|&block| shape.block_experts(block).is_none()).collect();
    json!({ "decoder_sparse_step": 1, "mlp_only_layers": dense })
}

/// `model.expert_pattern`, of all layers; none if all have experts. Of every `decoder_sparse_step` layers the last has
/// them, unless `mlp_only_layers` names it.
///
/// # Errors
/// Values that are no numbers of layers, or leave no layer with experts.
fn pattern(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let step = config.whole_or("decoder_sparse_step", 1)?;
    let dense: Option<Vec<u64>> = match config.get("mlp_only_layers") {
        Json::Null => Some(Vec::new()),
        layers => layers.as_array().and_then(|layers| layers.iter().map(Json::as_u64).collect()),
    };
    let dense = dense.ok_or_else(|| config.refuse("mlp_only_layers", "it has numbers of layers, from 0 on"))?;
    let count = config.whole("num_hidden_layers")?.min(MOST_LAYERS);
    let has = |layer: &i64| (layer + 1) % step == 0 && !dense.contains(&(*layer as u64));
    let layers: Vec<bool> = (0..count).map(|layer| has(&layer)).collect();
    if !layers.contains(&true) {
        let key = if step > count { "decoder_sparse_step" } else { "mlp_only_layers" };
        return Err(config.refuse(key, "at least one layer has experts"));
    }
    let pattern = || layers.iter().map(|&has| Value::Integer(has.into())).collect();
    Ok(if layers.contains(&false) { vec![("expert_pattern", Value::Array(pattern()))] } else { Vec::new() })
}
