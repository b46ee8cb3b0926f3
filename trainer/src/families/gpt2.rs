//! GPT-2 (Radford et al., 2019) and the sizes of GPT-3 (Brown et al., 2020). `GPT2LMHeadModel` in `transformers`.

use common::UserError;
use device::ops::NormKind;
use engine::model::{FeedForward, GptShape};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::{FileLayout, FileTensor, HuggingFace, Keys, ModelFamily, NamedOptions, TensorNames, sizes};
use super::requirements::{ATTENTION, DENSE, NO_LATENT, NO_SINKS, NO_WINDOWS, NOT_GEMMA, PRE_NORM, USUAL_HEAD_DIM};
use super::training::large;

/// The family. The options' defaults are its choices.
pub const GPT2: ModelFamily = ModelFamily {
    name: "GPT-2",
    choices: "",
    sizes: sizes! {
        "tiny", [], "";
        // Radford et al., 2019, as released: the paper counts 117M and 345M.
        "gpt2-124m", large("6e-4"), "layers = 12; hidden = 768; heads = 12; vocab = 50257; seq_length = 1024";
        "gpt2-350m", large("3e-4"), "layers = 24; hidden = 1024; heads = 16; vocab = 50257; seq_length = 1024";
        // Brown et al., 2020, table 2.1.
        "gpt-1.3b", large("2e-4"), "layers = 24; hidden = 2048; heads = 16; vocab = 50257; seq_length = 2048";
        "gpt-2.7b", large("1.6e-4"), "layers = 32; hidden = 2560; heads = 32; vocab = 50257; seq_length = 2048";
    },
    hugging_face: Some(&FILES),
};

const FILES: HuggingFace = HuggingFace {
    model_type: "gpt2",
    class: "GPT2LMHeadModel",
    requirements: &[
        &[
            ATTENTION,
            NO_SINKS,
            NO_LATENT,
            NO_WINDOWS,
            PRE_NORM,
            (|shape| shape.norm == NormKind::Layer, "a model.norm other than \"layernorm\""),
            (|shape| shape.feed_forward == FeedForward::Gelu, "a model.activation other than \"gelu\""),
            (|shape| shape.position.learned().is_some(), "a model.position other than \"learned\""),
            (|shape| shape.bias, "model.bias = false"),
            (|shape| shape.kv_heads == shape.heads, "model.kv_heads below model.heads"),
            USUAL_HEAD_DIM,
            DENSE,
        ],
        NOT_GEMMA,
    ],
    absent: "",
    keys: &[Keys { read: options, write: config_json }],
    // `Conv1D` keeps matrices transposed.
    tensors: TensorNames {
        prefix: "transformer.",
        layout: |_, parameter, axes| match parameter.starts_with("h.") && axes == 2 {
            true => FileLayout::Transposed,
            false => FileLayout::Ours,
        },
        of: tensors,
        fused: |_| None,
        has_further_tokens: false,
        is_leftover,
    },
};

fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    config.is_known("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")])?;
    config.is_known("scale_attn_weights", &[json!(true)])?;
    config.is_known("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
    config.is_known("add_cross_attention", &[json!(false)])?;
    let hidden = config.whole("n_embd")?;
    let heads = config.whole("n_head")?;
    let text = |word: &str| Value::String(word.into());
    Ok(vec![
        ("layers", config.whole("n_layer")?.into()),
        ("hidden", hidden.into()),
        ("heads", heads.into()),
        ("kv_heads", heads.into()),
        ("ffn", config.whole_or("n_inner", 4 * hidden)?.into()),
        ("vocab", config.whole("vocab_size")?.into()),
        ("seq_length", config.whole("n_positions")?.into()),
        ("max_position_embeddings", config.whole("n_positions")?.into()),
        ("norm", text("layernorm")),
        ("norm_eps", config.number_or("layer_norm_epsilon", 1e-5)?.into()),
        ("activation", text("gelu")),
        ("position", text("learned")),
        ("bias", true.into()),
        ("residual_init", text("scaled")),
        ("tie_embeddings", config.flag_or("tie_word_embeddings", true)?.into()),
    ])
}

fn config_json(shape: &GptShape) -> Json {
    json!({
        "activation_function": "gelu_new", "n_layer": shape.layers, "n_embd": shape.hidden, "n_head": shape.heads,
        "n_inner": shape.ffn, "n_positions": shape.position.learned().unwrap_or(shape.max_seq_len),
        "layer_norm_epsilon": shape.norm_eps, "resid_pdrop": shape.hidden_dropout,
        "embd_pdrop": shape.hidden_dropout, "attn_pdrop": shape.attention_dropout,
    })
}

/// Our names are GPT-2's.
fn tensors(_: &GptShape, parameter: &str) -> Vec<FileTensor> {
    match parameter {
        "lm_head.weight" => FileTensor::whole(parameter.into()),
        _ => FileTensor::whole(format!("transformer.{parameter}")),
    }
}

/// Whether a tensor is a causal mask.
fn is_leftover(tensor: &str, _layers: usize) -> bool {
    tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias")
}
