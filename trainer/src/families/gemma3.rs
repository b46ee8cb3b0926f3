//! Gemma 3 (Gemma Team, 2025), the text model: norms of heads instead of soft caps, five layers with a window to one
//! without, and frequencies of their own in each kind. `Gemma3ForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, Position};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, Keys, ModelFamily, NamedOptions, sizes};
use super::llama_files;
use super::requirements::{NO_SCORE_CAP, NORM_OF_EACH_HEAD};
use super::rope::{FULL_LAYERS as FULL, WINDOW_LAYERS as SLIDING};
use super::training::large;
use super::{gemma_files, rope};

/// The family.
pub const GEMMA3: ModelFamily = ModelFamily {
    name: "Gemma 3",
    choices: r#"norm = "rmsnorm_1p"; norm_eps = 1e-6; norm_placement = "sandwich"; activation = "geglu";
                position = "rotary"; rope_base = 1000000.0; rope_window_base = 10000.0; query_pre_attn_scalar = 256.0;
                qk_norm = true; bias = false; residual_init = "plain"; scale_embeddings = true"#,
    sizes: sizes! {
        // config.json of google/gemma-3-270m, -1b-pt, and the text part of -4b-pt, -12b-pt and -27b-pt, without their
        // 64 tokens for images. Learning rates are not published; these are Llama's.
        "gemma3-270m", large("3e-4"),
            "layers = 18; hidden = 640; heads = 4; kv_heads = 1; head_dim = 256; ffn = 2048; vocab = 262144;
             seq_length = 8192; sliding_window = 512; window_pattern = [1, 1, 1, 1, 1, 0]";
        "gemma3-1b", large("3e-4"),
            "layers = 26; hidden = 1152; heads = 4; kv_heads = 1; head_dim = 256; ffn = 6912; vocab = 262144;
             seq_length = 8192; sliding_window = 512; window_pattern = [1, 1, 1, 1, 1, 0]";
        "gemma3-4b", large("3e-4"),
            r#"layers = 34; hidden = 2560; heads = 8; kv_heads = 4; head_dim = 256; ffn = 10240; vocab = 262144;
               seq_length = 8192; sliding_window = 1024; rope_scaling = [8.0]; rope_scaling_type = "linear";
               window_pattern = [1, 1, 1, 1, 1, 0]"#;
        "gemma3-12b", large("3e-4"),
            r#"layers = 48; hidden = 3840; heads = 16; kv_heads = 8; head_dim = 256; ffn = 15360; vocab = 262144;
               seq_length = 8192; sliding_window = 1024; rope_scaling = [8.0]; rope_scaling_type = "linear";
               window_pattern = [1, 1, 1, 1, 1, 0]"#;
        "gemma3-27b", large("3e-4"),
            r#"layers = 62; hidden = 5376; heads = 32; kv_heads = 16; head_dim = 128; ffn = 21504; vocab = 262144;
               seq_length = 8192; query_pre_attn_scalar = 168.0; sliding_window = 1024; rope_scaling = [8.0];
               rope_scaling_type = "linear"; window_pattern = [1, 1, 1, 1, 1, 0]"#;
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    requirements: &[
        gemma_files::REQUIREMENTS,
        &[
            NORM_OF_EACH_HEAD,
            NO_SCORE_CAP,
            (scales_full_layers_alone, "model.rope_scaling without model.rope_window_base"),
        ],
    ],
    absent: "num_key_value_heads = 4; head_dim = 256; max_position_embeddings = 131072; rms_norm_eps = 1e-6;
             rope_theta = 1000000.0; rope_local_base_freq = 10000.0",
    keys: &[
        Keys { read: options, write: gemma_files::config_json },
        Keys { read: bases, write: |shape| json!({ "rope_local_base_freq": base_of_windows(shape) }) },
    ],
    tensors: llama_files::TENSORS_WITH_NORMS_AFTER,
};

fn scales_full_layers_alone(shape: &GptShape) -> bool {
    let one_scaled_base = matches!(shape.position, Position::Rotary { scaling: Some(_), window_base: None, .. });
    shape.windows.is_none() || !one_scaled_base
}

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    if !config.get("attn_logit_softcapping").is_null() {
        // `transformers` reads it and computes without.
        return Err(config.refuse("attn_logit_softcapping", "it is null or absent: norms of heads take its place"));
    }
    // `transformers` writes it with an underscore in front.
    let full_every = config.whole_or("_sliding_window_pattern", 6)?;
    let full_every = config.whole_or("sliding_window_pattern", full_every)?;
    gemma_files::options(config, full_every)
}

fn base_of_windows(shape: &GptShape) -> Option<f64> {
    match shape.position {
        Position::Rotary { base, window_base, .. } => Some(window_base.unwrap_or(base)),
        _ => None,
    }
}

fn bases(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let parameters = config.get("rope_parameters");
    let is_kind = |key: &String| key == FULL || key == SLIDING;
    if parameters.as_object().is_some_and(|all| !all.keys().all(is_kind)) {
        return Err(config.refuse("rope_parameters", &format!("it has \"{FULL}\" and \"{SLIDING}\" alone")));
    }
    let mut options = rope::options_of(config, &parameters[FULL])?;
    options.push(("rope_window_base", window_base(config, &parameters[SLIDING])?.into()));
    Ok(options)
}

/// The base of layers with a window. Version 5 of `transformers` has it in the `parameters` of these layers.
fn window_base(config: &ConfigJson<'_>, parameters: &Json) -> Result<f64, UserError> {
    let refuse = |rule: &str| Err(config.refuse("rope_parameters", rule));
    match &parameters["rope_type"] {
        Json::Null => {}
        kind if kind == "default" => {}
        _ => return refuse("the rope_type of its sliding_attention is \"default\""),
    }
    let part = &parameters["partial_rotary_factor"];
    if !part.is_null() && *part != 1.0 {
        return refuse("the partial_rotary_factor of its sliding_attention is 1");
    }
    let of_file = (parameters, "the rope_theta of its sliding_attention is a number");
    rope::base(config, "rope_local_base_freq", of_file)
}
