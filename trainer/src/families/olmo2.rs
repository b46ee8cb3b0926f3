//! OLMo 2 (Team OLMo, 2024): norms after attention and feed-forward instead of before, and over all queries and all keys.
//! `Olmo2ForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, NormPlacement, QkNorm};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::{self, Absent};
use super::training::large;

/// The family.
pub const OLMO2: ModelFamily = ModelFamily {
    name: "OLMo 2",
    choices: &[
        ("model.norm", "\"rmsnorm\""),
        ("model.norm_eps", "1e-6"),
        ("model.norm_placement", "\"post\""),
        ("model.activation", "\"swiglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "500000.0"),
        ("model.bias", "false"),
        ("model.qk_norm", "true"),
        ("model.qk_norm_over", "\"all_heads\""),
        ("model.residual_init", "\"plain\""),
        ("model.tie_embeddings", "false"),
    ],
    sizes: SIZES,
    hugging_face: Some(&Olmo2Files),
};

// config.json of allenai/OLMo-2-0425-1B, -1124-7B, -1124-13B and -0325-32B; learning rates as in Team OLMo, 2024.
const SIZES: &[Size] = &[
    Size {
        name: "olmo2-1b",
        model: &[
            ("model.layers", "16"),
            ("model.hidden", "2048"),
            ("model.heads", "16"),
            ("model.ffn", "8192"),
            ("model.vocab", "100352"),
            ("model.seq_length", "4096"),
        ],
        training: &large("4e-4"),
    },
    Size {
        name: "olmo2-7b",
        model: &[
            ("model.layers", "32"),
            ("model.hidden", "4096"),
            ("model.heads", "32"),
            ("model.ffn", "11008"),
            ("model.vocab", "100352"),
            ("model.seq_length", "4096"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "olmo2-13b",
        model: &[
            ("model.layers", "40"),
            ("model.hidden", "5120"),
            ("model.heads", "40"),
            ("model.ffn", "13824"),
            ("model.vocab", "100352"),
            ("model.seq_length", "4096"),
        ],
        training: &large("9e-4"),
    },
    Size {
        name: "olmo2-32b",
        model: &[
            ("model.layers", "64"),
            ("model.hidden", "5120"),
            ("model.heads", "40"),
            ("model.kv_heads", "8"),
            ("model.ffn", "27648"),
            ("model.vocab", "100352"),
            ("model.seq_length", "4096"),
        ],
        training: &large("6e-4"),
    },
];

struct Olmo2Files;

const ABSENT: Absent = Absent { kv_heads: None, head_dim: None, context: 2048, norm_eps: 1e-5, rope_base: 1e4 };

impl HuggingFace for Olmo2Files {
    fn model_type(&self) -> &'static str {
        "olmo2"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = llama_files::requirements(shape);
        all.extend([
            (shape.norm_placement == NormPlacement::Post, "a model.norm_placement other than \"post\""),
            (!shape.bias, "model.bias = true"),
            (!shape.qkv_bias, "model.qkv_bias = true"),
            (shape.qk_norm == Some(QkNorm::AllHeads), "model.qk_norm_over = \"each_head\" or no model.qk_norm"),
            (shape.windows.is_none(), "model.sliding_window"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("attention_bias", &[json!(false)])?;
        let mut options = llama_files::options(config, &ABSENT)?;
        let text = |word: &str| Value::String(word.into());
        options.extend([
            ("model.bias", false.into()),
            ("model.qk_norm", true.into()),
            ("model.qk_norm_over", text("all_heads")),
            ("model.norm_placement", text("post")),
        ]);
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = llama_files::config_json(shape);
        config.insert("architectures".into(), json!(["Olmo2ForCausalLM"]));
        config.insert("model_type".into(), json!("olmo2"));
        config.insert("attention_bias".into(), json!(false));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &TensorNames { of: tensors, ..llama_files::TENSORS }
    }
}

/// As Llama's, but for the norms of a block.
fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let of_norm = |ours: &str, theirs: &str| {
        let block = parameter.strip_prefix("h.")?.strip_suffix(ours)?;
        Some(FileTensor::whole(format!("model.layers.{block}.{theirs}.weight")))
    };
    of_norm(".post_ln_1.weight", "post_attention_layernorm")
        .or_else(|| of_norm(".post_ln_2.weight", "post_feedforward_layernorm"))
        .unwrap_or_else(|| llama_files::tensors(shape, parameter))
}
