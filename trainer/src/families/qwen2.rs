//! Qwen2 and Qwen2.5 (Yang et al., 2024): Llama's blocks with biases on queries, keys and values. `Qwen2ForCausalLM` in
//! `transformers`.

use common::UserError;
use engine::model::{GptShape, NormPlacement};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large;
use super::windows;

/// The family.
pub const QWEN2: ModelFamily = ModelFamily {
    name: "Qwen2",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-6"),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "1000000.0"),
        ("model.bias", "false"),
        ("model.qkv_bias", "true"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    sizes: SIZES,
    hugging_face: Some(&Qwen2Files),
};

// config.json of Qwen/Qwen2.5-0.5B, -1.5B and -7B. Most of their training had a context of 4096. Its learning rates are not
// published; these are Llama's.
const SIZES: &[Size] = &[
    Size {
        name: "qwen2.5-0.5b",
        model: &[
            ("model.layers", "24"),
            ("model.hidden", "896"),
            ("model.heads", "14"),
            ("model.kv_heads", "2"),
            ("model.ffn", "4864"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "qwen2.5-1.5b",
        model: &[
            ("model.layers", "28"),
            ("model.hidden", "1536"),
            ("model.heads", "12"),
            ("model.kv_heads", "2"),
            ("model.ffn", "8960"),
            ("model.vocab", "151936"),
            ("model.seq_length", "4096"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "qwen2.5-7b",
        model: &[
            ("model.layers", "28"),
            ("model.hidden", "3584"),
            ("model.heads", "28"),
            ("model.kv_heads", "4"),
            ("model.ffn", "18944"),
            ("model.vocab", "152064"),
            ("model.seq_length", "4096"),
        ],
        training: &large("3e-4"),
    },
];

struct Qwen2Files;

const ABSENT: Absent = Absent { kv_heads: Some(32), head_dim: None, context: 32_768, norm_eps: 1e-6, rope_base: 1e4 };

impl HuggingFace for Qwen2Files {
    fn model_type(&self) -> &'static str {
        "qwen2"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = llama_files::requirements(shape);
        all.extend([
            (!shape.bias, "model.bias = true"),
            (shape.qkv_bias, "model.qkv_bias = false"),
            (shape.qk_norm.is_none(), "model.qk_norm = true"),
            (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        let mut options = llama_files::options(config, &ABSENT)?;
        options.extend(windows::optional(config)?);
        options.extend([("model.bias", false.into()), ("model.qkv_bias", true.into())]);
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = llama_files::config_json(shape);
        config.insert("architectures".into(), json!(["Qwen2ForCausalLM"]));
        config.insert("model_type".into(), json!("qwen2"));
        config.insert("use_sliding_window".into(), json!(shape.windows.is_some()));
        config.insert("sliding_window".into(), windows::tokens(shape));
        config.insert("layer_types".into(), windows::layer_types(shape));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &llama_files::TENSORS
    }
}
