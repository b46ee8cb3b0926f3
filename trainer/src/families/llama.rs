//! Llama (Touvron et al., 2023; Llama Team, 2024). `LlamaForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, NormPlacement};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large;

/// The family.
pub const LLAMA: ModelFamily = ModelFamily {
    name: "Llama",
    // Llama Team, 2024, section 3.2.
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "500000.0"),
        ("model.bias", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    sizes: SIZES,
    hugging_face: Some(&LlamaFiles),
};

const SIZES: &[Size] = &[
    Size { name: "tiny-llama", model: &[("model.kv_heads", "2"), ("model.ffn", "176")], training: &[] },
    // Llama 3.2 1B, config.json of meta-llama/Llama-3.2-1B: tied, and with the scaled frequencies of Llama 3.1.
    Size {
        name: "llama-1b",
        model: &[
            ("model.layers", "16"),
            ("model.hidden", "2048"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "8192"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
            ("model.rope_scaling", "[32.0, 1.0, 4.0, 8192.0]"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    // Llama 3.2 3B, config.json of meta-llama/Llama-3.2-3B.
    Size {
        name: "llama-3b",
        model: &[
            ("model.layers", "28"),
            ("model.hidden", "3072"),
            ("model.heads", "24"),
            ("model.kv_heads", "8"),
            ("model.ffn", "8192"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
            ("model.rope_scaling", "[32.0, 1.0, 4.0, 8192.0]"),
            ("model.tie_embeddings", "true"),
        ],
        training: &large("3e-4"),
    },
    // Llama Team, 2024, table 3, and config.json of meta-llama/Meta-Llama-3-8B and -70B.
    Size {
        name: "llama-8b",
        model: &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.kv_heads", "8"),
            ("model.ffn", "14336"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "llama-70b",
        model: &[
            ("model.layers", "80"),
            ("model.hidden", "8192"),
            ("model.heads", "64"),
            ("model.kv_heads", "8"),
            ("model.ffn", "28672"),
            ("model.vocab", "128256"),
            ("model.seq_length", "8192"),
        ],
        training: &large("1.5e-4"),
    },
];

struct LlamaFiles;

/// The values for keys that files of the first Llama lack.
const ABSENT: Absent = Absent { kv_heads: None, head_dim: None, context: 2048, norm_eps: 1e-6, rope_base: 1e4 };

impl HuggingFace for LlamaFiles {
    fn model_type(&self) -> &'static str {
        "llama"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = llama_files::requirements(shape);
        all.extend([
            (shape.bias || !shape.qkv_bias, "model.qkv_bias = true with model.bias = false"),
            (shape.qk_norm.is_none(), "model.qk_norm = true"),
            (shape.norm_placement == NormPlacement::Pre, "a model.norm_placement other than \"pre\""),
            (shape.windows.is_none(), "model.sliding_window"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        let mut options = llama_files::options(config, &ABSENT)?;
        let bias = config.flag_or("attention_bias", false)?;
        if config.flag_or("mlp_bias", false)? != bias {
            return Err(config.refuse("mlp_bias", "it is as attention_bias"));
        }
        options.push(("model.bias", bias.into()));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = llama_files::config_json(shape);
        config.insert("architectures".into(), json!(["LlamaForCausalLM"]));
        config.insert("model_type".into(), json!("llama"));
        config.insert("attention_bias".into(), json!(shape.bias));
        config.insert("mlp_bias".into(), json!(shape.bias));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &llama_files::TENSORS
    }
}
