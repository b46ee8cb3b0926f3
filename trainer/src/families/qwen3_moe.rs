//! Qwen3 (Yang et al., 2025) with experts, in all blocks or some. `Qwen3MoeForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, QkNorm};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::{ConfigJson, MOST_LAYERS};
use super::expert_files;
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large_with_experts;
use super::windows;

/// The family.
pub const QWEN3_MOE: ModelFamily = ModelFamily {
    name: "Qwen3-MoE",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-6"),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "1000000.0"),
        ("model.bias", "false"),
        ("model.qk_norm", "true"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    // config.json of Qwen/Qwen3-30B-A3B-Base. No block is dense, so nothing has the width `model.ffn`. Context and learning
    // rates are as for Qwen3.
    sizes: &[Size {
        name: "qwen3-30b-a3b",
        model: &[
            ("model.layers", "48"),
            ("model.hidden", "2048"),
            ("model.heads", "32"),
            ("model.kv_heads", "4"),
            ("model.head_dim", "128"),
            ("model.ffn", "6144"),
            ("model.experts", "128"),
            ("model.experts_per_token", "8"),
            ("model.expert_ffn", "768"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
        ],
        training: &large_with_experts("3e-4", "0.001"),
    }],
    hugging_face: Some(&Qwen3MoeFiles),
};

struct Qwen3MoeFiles;

const ABSENT: Absent = Absent { kv_heads: Some(4), head_dim: None, context: 32_768, norm_eps: 1e-6, rope_base: 1e4 };
const ABSENT_EXPERTS: expert_files::Absent = expert_files::Absent { count: 128, per_token: 8 };

impl HuggingFace for Qwen3MoeFiles {
    fn model_type(&self) -> &'static str {
        "qwen3_moe"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = expert_files::requirements(shape);
        all.extend([
            (shape.qk_norm == Some(QkNorm::EachHead), "no model.qk_norm over each head"),
            (windows::are_in_all_blocks_or_none(shape), "a model.window_pattern"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("attention_bias", &[json!(false)])?;
        let mut options = llama_files::options(config, &ABSENT)?;
        options.extend(expert_files::options(config, &ABSENT_EXPERTS)?);
        options.extend([
            ("model.expert_ffn", config.whole_or("moe_intermediate_size", 768)?.into()),
            ("model.router_normalise", config.flag_or("norm_topk_prob", false)?.into()),
            ("model.bias", false.into()),
            ("model.qk_norm", true.into()),
        ]);
        options.extend(pattern(config)?.map(|pattern| ("model.expert_pattern", pattern)));
        let has_windows = config.flag_or("use_sliding_window", false)?;
        let window = if has_windows { windows::sliding_window(config, 4096)? } else { None };
        options.extend(windows::options(window, &[true]));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = expert_files::config_json(shape, "num_experts");
        let dense = (0..shape.layers).filter(|&block| shape.block_experts(block).is_none());
        config.insert("architectures".into(), json!(["Qwen3MoeForCausalLM"]));
        config.insert("model_type".into(), json!("qwen3_moe"));
        config.insert("attention_bias".into(), json!(false));
        config.insert("use_sliding_window".into(), json!(shape.windows.is_some()));
        config.insert("sliding_window".into(), windows::tokens(shape));
        config.insert("moe_intermediate_size".into(), expert_files::value(shape, |experts| experts.ffn));
        config.insert("norm_topk_prob".into(), expert_files::value(shape, |experts| experts.router.normalise));
        config.insert("decoder_sparse_step".into(), json!(1));
        config.insert("mlp_only_layers".into(), dense.collect());
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &TensorNames { of: tensors, fused: expert_files::fused, ..llama_files::TENSORS }
    }
}

/// `model.expert_pattern`, of all layers; `None` if all have experts. Of every `decoder_sparse_step` layers the last has
/// them, unless `mlp_only_layers` names it.
///
/// # Errors
/// Values that are no numbers of layers, or leave no layer with experts.
fn pattern(config: &ConfigJson<'_>) -> Result<Option<Value>, UserError> {
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
    Ok(layers.contains(&false).then(|| Value::Array(pattern())))
}

fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    expert_files::tensors(&expert_files::NAMES, shape, parameter)
}
