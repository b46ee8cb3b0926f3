//! gpt-oss (OpenAI, 2025): sinks, a window in every other layer, YaRN, and experts of clamped SwiGLU; all linear layers have
//! biases. `GptOssForCausalLM` in `transformers`. The published files have the matrices of experts as MXFP4: they are read,
//! and written in 16 bits.

use common::UserError;
use engine::model::{AttentionKind, FeedForward, GptShape};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::expert_files::{self, every};
use super::family::{FileLayout, FileTensor, HuggingFace, Keys, ModelFamily, NamedOptions, TensorNames, sizes};
use super::llama_files;
use super::requirements::{ATTENTION, NO_QK_NORM, NOT_GEMMA, ONE_BASE, PRE_NORM, RMS_NORM, ROTARY};
use super::training::large_with_experts;
use super::windows;

/// The family.
pub const GPT_OSS: ModelFamily = ModelFamily {
    name: "gpt-oss",
    choices: r#"norm = "rmsnorm"; norm_eps = 1e-5; activation = "clamped_swiglu"; position = "rotary";
                rope_base = 150000.0; bias = true; attention_sinks = true; residual_init = "plain";
                tie_embeddings = false"#,
    // config.json of openai/gpt-oss-20b and -120b. Learning rates are not published; these are Llama's.
    sizes: sizes! {
        "gpt-oss-20b", large_with_experts("3e-4", "0.001"),
            r#"layers = 24; hidden = 2880; heads = 64; kv_heads = 8; head_dim = 64; ffn = 2880; experts = 32;
               experts_per_token = 4; vocab = 201088; seq_length = 8192; sliding_window = 128;
               window_pattern = [1, 0]; rope_scaling = [32.0, 4096.0, 32.0, 1.0, 1.3465735902799727];
               rope_scaling_type = "yarn_exact""#;
        "gpt-oss-120b", large_with_experts("3e-4", "0.001"),
            r#"layers = 36; hidden = 2880; heads = 64; kv_heads = 8; head_dim = 64; ffn = 2880; experts = 128;
               experts_per_token = 4; vocab = 201088; seq_length = 8192; sliding_window = 128;
               window_pattern = [1, 0]; rope_scaling = [32.0, 4096.0, 32.0, 1.0, 1.3465735902799727];
               rope_scaling_type = "yarn_exact""#;
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    requirements: &[
        &[
            ATTENTION,
            (|shape| shape.attention == AttentionKind::Grouped { sinks: true }, "model.attention_sinks = false"),
            RMS_NORM,
            (
                |shape| shape.feed_forward == FeedForward::ClampedSwiGlu,
                "a model.activation other than \"clamped_swiglu\"",
            ),
            ROTARY,
            ONE_BASE,
            PRE_NORM,
            (|shape| shape.bias, "model.bias = false"),
            NO_QK_NORM,
            (|shape| every(shape, |experts| experts.router.normalise), "model.router_normalise = false"),
            expert_files::NO_DENSE_BLOCKS,
        ],
        NOT_GEMMA,
        expert_files::PLAIN_ROUTERS,
    ],
    absent: "num_key_value_heads = 8; head_dim = 64; max_position_embeddings = 131072; rms_norm_eps = 1e-5;
             rope_theta = 150000.0; num_local_experts = 128; num_experts_per_tok = 4",
    keys: &[Keys { read: options, write: config_json }, expert_files::LOCAL_KEYS, expert_files::FFN_IS_OF_EXPERTS],
    tensors: TensorNames { of: tensors, layout, ..llama_files::TENSORS },
};

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    config.is_known("attention_bias", &[json!(true)])?;
    config.is_known("swiglu_limit", &[json!(7.0), json!(7)])?;
    config.is_known("swiglu_alpha", &[json!(1.702)])?;
    let format = &config.get("quantization_config")["quant_method"];
    if !format.is_null() && format != "mxfp4" {
        return Err(config.refuse("quantization_config", "its quant_method is \"mxfp4\", or there is none"));
    }
    let mut options = llama_files::options(config)?;
    if !config.has("rope_scaling") && !config.has("rope_parameters") {
        return Err(config.refuse("rope_scaling", "it is there: versions of transformers take other values without it"));
    }
    let layers = windows::layers(config, |layer| layer % 2 == 0)?;
    options.extend(windows::options(windows::sliding_window(config, 128)?, &layers));
    Ok(options)
}

fn config_json(shape: &GptShape) -> Json {
    let mut config = llama_files::config_json(shape);
    config["attention_bias"] = json!(true);
    config["swiglu_limit"] = json!(7.0);
    config["sliding_window"] = windows::tokens(shape);
    config["layer_types"] = windows::layer_types(shape);
    config
}

/// The block of a parameter, and the parameter's name within the block.
fn inner(parameter: &str) -> Option<(&str, &str)> {
    parameter.strip_prefix("h.")?.split_once('.')
}

fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let theirs = match inner(parameter).map(|(_, name)| name) {
        Some("attn.sinks") => "self_attn.sinks",
        Some("mlp.router.weight") => "mlp.router.weight",
        Some("mlp.router.logit_bias") => "mlp.router.bias",
        Some("mlp.experts.c_fc.weight") => "mlp.experts.gate_up_proj",
        Some("mlp.experts.c_fc.bias") => "mlp.experts.gate_up_proj_bias",
        Some("mlp.experts.c_proj.weight") => "mlp.experts.down_proj",
        Some("mlp.experts.c_proj.bias") => "mlp.experts.down_proj_bias",
        _ => return llama_files::tensors(shape, parameter),
    };
    FileTensor::whole(inner(parameter).map_or(String::new(), |(block, _)| format!("model.layers.{block}.{theirs}")))
}

/// Files have the matrices of an expert as `(in, out)`, and the columns of gate and gated values in turns.
fn layout(shape: &GptShape, parameter: &str, _axes: usize) -> FileLayout {
    let experts = shape.experts.as_ref().map_or(1, |experts| experts.count);
    match inner(parameter).map(|(_, name)| name) {
        Some("mlp.experts.c_fc.weight" | "mlp.experts.c_fc.bias") => FileLayout::OfExperts { experts, in_turns: true },
        Some("mlp.experts.c_proj.weight" | "mlp.experts.c_proj.bias") => {
            FileLayout::OfExperts { experts, in_turns: false }
        }
        _ => FileLayout::Ours,
    }
}
