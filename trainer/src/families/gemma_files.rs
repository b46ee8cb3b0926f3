//! The common parts of Gemma 2's and Gemma 3's files: norms before and after the parts of blocks, multiplying by 1 +
//! weight, GeGLU, scaled embeddings, and windows in some of the layers.

use common::UserError;
use device::ops::NormKind;
use engine::model::{FeedForward, GptShape, NormPlacement, Position};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::{FileTensor, ModelOptions, TensorNames};
use super::llama_files::{self, Absent, without_experts};
use super::windows;

/// The requirements of both families for a shape; see [`HuggingFace::requirements`](super::HuggingFace::requirements).
pub(super) fn requirements(shape: &GptShape) -> Vec<(bool, &'static str)> {
    vec![
        (shape.attention, "model.attention = false"),
        (shape.norm == NormKind::Rms1p, "a model.norm other than \"rmsnorm_1p\""),
        (shape.norm_placement == NormPlacement::Sandwich, "a model.norm_placement other than \"sandwich\""),
        (shape.feed_forward == FeedForward::GeGlu, "a model.activation other than \"geglu\""),
        (matches!(shape.position, Position::Rotary { .. }), "a model.position other than \"rotary\""),
        (shape.scaled_embedding, "model.scale_embeddings = false"),
        (!shape.bias, "model.bias = true"),
        (!shape.qkv_bias, "model.qkv_bias = true"),
        without_experts(shape),
    ]
}

/// The options that both families have in a `config.json`, without frequencies and norms of heads. If the file does not
/// tell each layer's type, one layer of every `full_every` has no window.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options(
    config: &ConfigJson<'_>,
    absent: &Absent,
    full_every: i64,
    absent_logit_cap: Option<f64>,
) -> Result<ModelOptions, UserError> {
    for key in ["hidden_activation", "hidden_act"] {
        config.is_known(key, &[json!("gelu_pytorch_tanh")])?;
    }
    config.is_known("attention_bias", &[json!(false)])?;
    config.is_known("use_bidirectional_attention", &[json!(false)])?;
    let mut options = llama_files::sizes(config, absent)?;
    let text = |word: &str| Value::String(word.into());
    options.extend([
        ("model.norm", text("rmsnorm_1p")),
        ("model.norm_placement", text("sandwich")),
        ("model.activation", text("geglu")),
        ("model.bias", false.into()),
        ("model.tie_embeddings", config.flag_or("tie_word_embeddings", true)?.into()),
        ("model.scale_embeddings", true.into()),
        ("model.query_pre_attn_scalar", config.number_or("query_pre_attn_scalar", 256.0)?.into()),
    ]);
    let logit_cap = soft_cap(config, "final_logit_softcapping", absent_logit_cap)?;
    options.extend(logit_cap.map(|cap| ("model.logit_soft_cap", cap.into())));
    let layers = windows::layers(config, |layer| (layer + 1) % full_every != 0)?;
    let window = windows::sliding_window(config, 4096)?;
    if window.is_none() && layers.contains(&true) {
        return Err(config.refuse("sliding_window", "it is a number where a layer is \"sliding_attention\""));
    }
    options.extend(windows::options(window, &layers));
    Ok(options)
}

/// A bound; `absent` if the key is absent, and none if it is null.
///
/// # Errors
/// Another value than a number or null.
pub(super) fn soft_cap(config: &ConfigJson<'_>, key: &str, absent: Option<f64>) -> Result<Option<f64>, UserError> {
    match config.get(key) {
        Json::Null if config.has(key) => Ok(None),
        Json::Null => Ok(absent),
        _ => config.number_or(key, 0.0).map(Some),
    }
}

/// The keys of `config.json` that both families have.
pub(super) fn config_json(shape: &GptShape) -> serde_json::Map<String, Json> {
    let mut config = llama_files::config_json(shape);
    config.remove("hidden_act");
    let scalar = shape.query_pre_attn_scalar.unwrap_or(shape.head_dim() as f64);
    config.extend([
        ("hidden_activation".into(), json!("gelu_pytorch_tanh")),
        ("attention_bias".into(), json!(false)),
        // The files of the models have whole numbers.
        ("query_pre_attn_scalar".into(), if scalar.fract() == 0.0 { json!(scalar as u64) } else { json!(scalar) }),
        ("attn_logit_softcapping".into(), json!(shape.attention_soft_cap)),
        ("final_logit_softcapping".into(), json!(shape.logit_soft_cap)),
        ("sliding_window".into(), windows::tokens(shape)),
        ("layer_types".into(), windows::layer_types(shape)),
    ]);
    config
}

/// How the files of both families hold parameters.
pub(super) const TENSORS: TensorNames = TensorNames { of: tensors, ..llama_files::TENSORS };

/// As Llama's, but for the norms of a block.
fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let of_norm = |ours: &str, theirs: &str| {
        let block = parameter.strip_prefix("h.")?.strip_suffix(ours)?;
        Some(FileTensor::whole(format!("model.layers.{block}.{theirs}.weight")))
    };
    of_norm(".post_ln_1.weight", "post_attention_layernorm")
        .or_else(|| of_norm(".post_ln_2.weight", "post_feedforward_layernorm"))
        .or_else(|| of_norm(".ln_2.weight", "pre_feedforward_layernorm"))
        .unwrap_or_else(|| llama_files::tensors(shape, parameter))
}
