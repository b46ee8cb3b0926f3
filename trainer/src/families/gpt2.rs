//! GPT-2 (Radford et al., 2019) and the sizes of GPT-3 (Brown et al., 2020). `GPT2LMHeadModel` in `transformers`.

use common::UserError;
use device::ops::NormKind;
use engine::model::{FeedForward, GptShape, NormPlacement};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{without_experts, without_gemmas_choices};
use super::training::large;

/// The family. The options' defaults are its choices.
pub const GPT2: ModelFamily = ModelFamily { name: "GPT-2", choices: &[], sizes: SIZES, hugging_face: Some(&Gpt2Files) };

const SIZES: &[Size] = &[
    Size { name: "tiny", model: &[], training: &[] },
    // Radford et al., 2019, as released: the paper counts 117M and 345M.
    Size {
        name: "gpt2-124m",
        model: &[
            ("model.layers", "12"),
            ("model.hidden", "768"),
            ("model.heads", "12"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        training: &large("6e-4"),
    },
    Size {
        name: "gpt2-350m",
        model: &[
            ("model.layers", "24"),
            ("model.hidden", "1024"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "1024"),
        ],
        training: &large("3e-4"),
    },
    // Brown et al., 2020, table 2.1.
    Size {
        name: "gpt-1.3b",
        model: &[
            ("model.layers", "24"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        training: &large("2e-4"),
    },
    Size {
        name: "gpt-2.7b",
        model: &[
            ("model.layers", "32"),
            ("model.hidden", "2560"),
            ("model.heads", "32"),
            ("model.vocab", "50257"),
            ("model.seq_length", "2048"),
        ],
        training: &large("1.6e-4"),
    },
];

struct Gpt2Files;

impl HuggingFace for Gpt2Files {
    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = vec![
            (shape.attention, "model.attention = false"),
            (shape.windows.is_none(), "model.sliding_window"),
            (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
            (shape.norm == NormKind::Layer, "a model.norm other than \"layernorm\""),
            (shape.feed_forward == FeedForward::Gelu, "a model.activation other than \"gelu\""),
            (shape.position.learned().is_some(), "a model.position other than \"learned\""),
            (shape.bias, "model.bias = false"),
            (shape.kv_heads == shape.heads, "model.kv_heads below model.heads"),
            (shape.heads * shape.head_dim() == shape.hidden, "a model.head_dim other than hidden / heads"),
        ];
        all.push(without_experts(shape));
        all.extend(without_gemmas_choices(shape));
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")])?;
        config.is_known("scale_attn_weights", &[json!(true)])?;
        config.is_known("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
        config.is_known("add_cross_attention", &[json!(false)])?;
        let hidden = config.whole("n_embd")?;
        let heads = config.whole("n_head")?;
        let text = |word: &str| Value::String(word.into());
        Ok(vec![
            ("model.kind", text("gpt")),
            ("model.layers", config.whole("n_layer")?.into()),
            ("model.hidden", hidden.into()),
            ("model.heads", heads.into()),
            ("model.kv_heads", heads.into()),
            ("model.ffn", config.whole_or("n_inner", 4 * hidden)?.into()),
            ("model.vocab", config.whole("vocab_size")?.into()),
            ("model.seq_length", config.whole("n_positions")?.into()),
            ("model.max_position_embeddings", config.whole("n_positions")?.into()),
            ("model.attention", true.into()),
            ("model.norm", text("layernorm")),
            ("model.norm_eps", config.number_or("layer_norm_epsilon", 1e-5)?.into()),
            ("model.activation", text("gelu")),
            ("model.position", text("learned")),
            ("model.bias", true.into()),
            ("model.residual_init", text("scaled")),
            ("model.tie_embeddings", config.flag_or("tie_word_embeddings", true)?.into()),
        ])
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
            "n_layer": shape.layers, "n_embd": shape.hidden, "n_head": shape.heads, "n_inner": shape.ffn,
            "n_positions": shape.position.learned().unwrap_or(shape.max_seq_len), "layer_norm_epsilon": shape.norm_eps, "resid_pdrop": shape.hidden_dropout,
            "embd_pdrop": shape.hidden_dropout, "attn_pdrop": shape.attention_dropout,
        })
    }

    fn tensors(&self) -> &'static TensorNames {
        // `Conv1D` keeps matrices transposed.
        &TensorNames {
            prefix: "transformer.",
            transposes_linear_layers: true,
            of: tensors,
            fused: |_| None,
            is_leftover,
        }
    }
}

/// Our names are GPT-2's.
fn tensors(_: &GptShape, parameter: &str) -> Vec<FileTensor> {
    match parameter {
        "lm_head.weight" => FileTensor::whole(parameter.into()),
        _ => FileTensor::whole(format!("transformer.{parameter}")),
    }
}

/// Whether a tensor is a causal mask.
fn is_leftover(tensor: &str) -> bool {
    tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias")
}
