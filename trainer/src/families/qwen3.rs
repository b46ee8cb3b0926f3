//! Qwen3 (Yang et al., 2025), dense: Llama's blocks with RMSNorms on queries and keys, head by head. `Qwen3ForCausalLM` in
//! `transformers`.

use common::UserError;
use engine::model::{GptShape, NormPlacement, QkNorm};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large;
use super::windows;

/// The family.
pub const QWEN3: ModelFamily = ModelFamily {
    name: "Qwen3",
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
    sizes: SIZES,
    hugging_face: Some(&Qwen3Files),
};

// config.json of Qwen/Qwen3-0.6B-Base, -1.7B-Base, -4B-Base and -8B-Base. Most of their training had a context of 4096. Its
// learning rates are not published; these are Llama's.
const SIZES: &[Size] = &[
    Size {
        name: "qwen3-0.6b",
        model: &[
            ("model.layers", "28"),
            ("model.hidden", "1024"),
            ("model.heads", "16"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "128"),
            ("model.ffn", "3072"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "qwen3-1.7b",
        model: &[
            ("model.layers", "28"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "128"),
            ("model.ffn", "6144"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "qwen3-4b",
        model: &[
            ("model.layers", "36"),
            ("model.hidden", "2560"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "128"),
            ("model.ffn", "9728"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "qwen3-8b",
        model: &[
            ("model.layers", "36"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "128"),
            ("model.ffn", "12288"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
        ],
        training: &large("3e-4"),
    },
];

struct Qwen3Files;

const ABSENT: Absent =
    Absent { kv_heads: Some(32), head_dim: Some(128), context: 32_768, norm_eps: 1e-6, rope_base: 1e4 };

impl HuggingFace for Qwen3Files {
    fn model_type(&self) -> &'static str {
        "qwen3"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = llama_files::requirements(shape);
        all.extend([
            (!shape.bias, "model.bias = true"),
            (!shape.qkv_bias, "model.qkv_bias = true"),
            (shape.qk_norm == Some(QkNorm::EachHead), "no model.qk_norm over each head"),
            (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("attention_bias", &[json!(false)])?;
        let mut options = llama_files::options(config, &ABSENT)?;
        options.extend(windows::optional(config)?);
        options.extend([("model.bias", false.into()), ("model.qk_norm", true.into())]);
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = llama_files::config_json(shape);
        config.insert("architectures".into(), json!(["Qwen3ForCausalLM"]));
        config.insert("model_type".into(), json!("qwen3"));
        config.insert("attention_bias".into(), json!(false));
        config.insert("use_sliding_window".into(), json!(shape.windows.is_some()));
        config.insert("sliding_window".into(), windows::tokens(shape));
        config.insert("layer_types".into(), windows::layer_types(shape));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &llama_files::TENSORS
    }
}
