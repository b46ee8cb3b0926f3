//! The common parts of Gemma 2's and Gemma 3's files: norms before and after the parts of blocks, multiplying by 1 +
//! weight, GeGLU, scaled embeddings, and windows in some of the layers.

use common::UserError;
use device::ops::NormKind;
use engine::model::{FeedForward, GptShape, NormPlacement};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{NamedOptions, Requirement};
use super::llama_files;
use super::requirements::{ATTENTION, DENSE, NO_BIAS, NO_LATENT, NO_QKV_BIAS, NO_SINKS, ROTARY};
use super::windows;

/// The requirements of both families.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    ATTENTION,
    NO_SINKS,
    NO_LATENT,
    (|shape| shape.norm == NormKind::Rms1p, "a model.norm other than \"rmsnorm_1p\""),
    (|shape| shape.norm_placement == NormPlacement::Sandwich, "a model.norm_placement other than \"sandwich\""),
    (|shape| shape.feed_forward == FeedForward::GeGlu, "a model.activation other than \"geglu\""),
    ROTARY,
    (|shape| shape.scaled_embedding, "model.scale_embeddings = false"),
    NO_BIAS,
    NO_QKV_BIAS,
    DENSE,
];

/// The options that both families have in a `config.json`, without frequencies and norms of heads. If the file does not
/// tell each layer's type, one layer of every `full_every` has no window.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options(config: &ConfigJson<'_>, full_every: i64) -> Result<NamedOptions, UserError> {
    for key in ["hidden_activation", "hidden_act"] {
        config.is_known(key, &[json!("gelu_pytorch_tanh")])?;
    }
    config.is_known("attention_bias", &[json!(false)])?;
    config.is_known("use_bidirectional_attention", &[json!(false)])?;
    let mut options = llama_files::sizes(config)?;
    options.extend([
        ("tie_embeddings", config.flag_or("tie_word_embeddings", true)?.into()),
        ("query_pre_attn_scalar", config.number_or("query_pre_attn_scalar", 256.0)?.into()),
    ]);
    let logit_cap = soft_cap(config, "final_logit_softcapping")?;
    options.extend(logit_cap.map(|cap| ("logit_soft_cap", cap.into())));
    let layers = windows::layers(config, |layer| (layer + 1) % full_every != 0)?;
    let window = windows::sliding_window(config, 4096)?;
    if window.is_none() && layers.contains(&true) {
        return Err(config.refuse("sliding_window", "it is a number where a layer is \"sliding_attention\""));
    }
    options.extend(windows::options(window, &layers));
    Ok(options)
}

/// A soft cap; the family's if the key is absent, and none if the value is null.
///
/// # Errors
/// Another value than a number or null.
pub(super) fn soft_cap(config: &ConfigJson<'_>, key: &str) -> Result<Option<f64>, UserError> {
    match config.get(key) {
        Json::Null if config.has(key) => Ok(None),
        Json::Null => Ok(config.absent(key)),
        _ => config.number_or(key, 0.0).map(Some),
    }
}

/// The keys of `config.json` that both families have.
pub(super) fn config_json(shape: &GptShape) -> Json {
    let mut config = llama_files::size_keys(shape);
    let scalar = shape.query_pre_attn_scalar.unwrap_or(shape.head_dim() as f64);
    config["hidden_activation"] = json!("gelu_pytorch_tanh");
    config["attention_bias"] = json!(false);
    // The files of the models have whole numbers.
    config["query_pre_attn_scalar"] = if scalar.fract() == 0.0 { json!(scalar as u64) } else { json!(scalar) };
    config["attn_logit_softcapping"] = json!(shape.attention_soft_cap);
    config["final_logit_softcapping"] = json!(shape.logit_soft_cap);
    config["sliding_window"] = windows::tokens(shape);
    config["layer_types"] = windows::layer_types(shape);
    config
}
