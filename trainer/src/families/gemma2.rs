//! Gemma 2 (Gemma Team, 2024): soft caps of scores and logits, and a window in every other layer. `Gemma2ForCausalLM` in
//! `transformers`.

use common::UserError;
use engine::model::{GptShape, Position};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::Absent;
use super::training::large;
use super::{gemma_files, rope};

/// The family.
pub const GEMMA2: ModelFamily = ModelFamily {
    name: "Gemma 2",
    choices: &[
        ("model.norm", "\"rmsnorm_1p\""),
        ("model.norm_eps", "1e-6"),
        ("model.norm_placement", "\"sandwich\""),
        ("model.activation", "\"geglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "10000.0"),
        ("model.query_pre_attn_scalar", "256.0"),
        ("model.attention_soft_cap", "50.0"),
        ("model.logit_soft_cap", "30.0"),
        ("model.sliding_window", "4096"),
        ("model.window_pattern", "[1, 0]"),
        ("model.bias", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.scale_embeddings", "true"),
    ],
    sizes: SIZES,
    hugging_face: Some(&Gemma2Files),
};

// config.json of google/gemma-2-2b, -9b and -27b. Learning rates are not published; these are Llama's.
const SIZES: &[Size] = &[
    Size {
        name: "gemma2-2b",
        model: &[
            ("model.layers", "26"),
            ("model.hidden", "2304"),
            ("model.heads", "8"),
            ("model.kv_heads", "4"),
            ("model.head_dim", "256"),
            ("model.ffn", "9216"),
            ("model.vocab", "256000"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma2-9b",
        model: &[
            ("model.layers", "42"),
            ("model.hidden", "3584"),
            ("model.heads", "16"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "256"),
            ("model.ffn", "14336"),
            ("model.vocab", "256000"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma2-27b",
        model: &[
            ("model.layers", "46"),
            ("model.hidden", "4608"),
            ("model.heads", "32"),
            ("model.kv_heads", "16"),
            ("model.head_dim", "128"),
            ("model.ffn", "36864"),
            ("model.vocab", "256000"),
            ("model.seq_length", "8192"),
            ("model.query_pre_attn_scalar", "144.0"),
        ],
        training: &large("3e-4"),
    },
];

struct Gemma2Files;

const ABSENT: Absent = Absent { kv_heads: Some(4), head_dim: Some(256), context: 8192, norm_eps: 1e-6, rope_base: 1e4 };

impl HuggingFace for Gemma2Files {
    fn model_type(&self) -> &'static str {
        "gemma2"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = gemma_files::requirements(shape);
        all.extend([
            (shape.qk_norm.is_none(), "model.qk_norm = true"),
            (!matches!(shape.position, Position::Rotary { window_base: Some(_), .. }), "model.rope_window_base"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        let mut options = gemma_files::options(config, &ABSENT, 2, Some(30.0))?;
        options.extend(rope::options(config, ABSENT.rope_base)?);
        let cap = gemma_files::soft_cap(config, "attn_logit_softcapping", Some(50.0))?;
        options.extend(cap.map(|cap| ("model.attention_soft_cap", cap.into())));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = gemma_files::config_json(shape);
        config.insert("architectures".into(), json!(["Gemma2ForCausalLM"]));
        config.insert("model_type".into(), json!("gemma2"));
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &gemma_files::TENSORS
    }
}
