//! Mistral (Jiang et al., 2023). `MistralForCausalLM` in `transformers`. It computes as a Llama without biases does, apart
//! from a window of attention in its first version.

use common::UserError;
use engine::model::{GptShape, NormPlacement};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large;
use super::windows;

/// The family.
pub const MISTRAL: ModelFamily = ModelFamily {
    name: "Mistral",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-5"),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "1000000.0"),
        ("model.bias", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    sizes: SIZES,
    hugging_face: Some(&MistralFiles),
};

const SIZES: &[Size] = &[
    // config.json of mistralai/Mistral-7B-v0.3. It has no window.
    Size {
        name: "mistral-7b",
        model: &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "14336"),
            ("model.vocab", "32768"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    // config.json of mistralai/Mistral-Nemo-Base-2407.
    Size {
        name: "mistral-nemo-12b",
        model: &[
            ("model.layers", "40"),
            ("model.hidden", "5120"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "128"),
            ("model.ffn", "14336"),
            ("model.vocab", "131072"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
];

struct MistralFiles;

const ABSENT: Absent = Absent { kv_heads: Some(8), head_dim: None, context: 131_072, norm_eps: 1e-6, rope_base: 1e4 };

impl HuggingFace for MistralFiles {
    fn model_type(&self) -> &'static str {
        "mistral"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = llama_files::requirements(shape);
        all.extend([
            (!shape.bias, "model.bias = true"),
            (!shape.qkv_bias, "model.qkv_bias = true"),
            (shape.qk_norm.is_none(), "model.qk_norm = true"),
            (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
            (windows::are_in_all_blocks_or_none(shape), "a model.window_pattern"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        let mut options = llama_files::options(config, &ABSENT)?;
        options.extend(windows::options(windows::sliding_window(config, 4096)?, &[true]));
        options.push(("model.bias", false.into()));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = llama_files::config_json(shape);
        config.insert("architectures".into(), json!(["MistralForCausalLM"]));
        config.insert("model_type".into(), json!("mistral"));
        config.insert("sliding_window".into(), windows::tokens(shape));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &llama_files::TENSORS
    }
}
