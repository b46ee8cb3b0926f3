//! Gemma 3 (Gemma Team, 2025), the text model: norms of heads instead of soft caps, five layers with a window to one
//! without, and frequencies of their own in each kind. `Gemma3ForCausalLM` in `transformers`.

use common::UserError;
use engine::model::{GptShape, Position, QkNorm};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{HuggingFace, ModelFamily, ModelOptions, Size, TensorNames};
use super::llama_files::Absent;
use super::rope::{FULL_LAYERS as FULL, WINDOW_LAYERS as SLIDING};
use super::training::large;
use super::{gemma_files, rope};

/// The family.
pub const GEMMA3: ModelFamily = ModelFamily {
    name: "Gemma 3",
    choices: &[
        ("model.norm", "\"rmsnorm_1p\""),
        ("model.norm_eps", "1e-6"),
        ("model.norm_placement", "\"sandwich\""),
        ("model.activation", "\"geglu\""),
        ("model.position", "\"rotary\""),
        ("model.rope_base", "1000000.0"),
        ("model.rope_window_base", "10000.0"),
        ("model.query_pre_attn_scalar", "256.0"),
        ("model.qk_norm", "true"),
        ("model.sliding_window", "512"),
        ("model.window_pattern", "[1, 1, 1, 1, 1, 0]"),
        ("model.bias", "false"),
        ("model.residual_init", "\"plain\""),
        ("model.scale_embeddings", "true"),
    ],
    sizes: SIZES,
    hugging_face: Some(&Gemma3Files),
};

// config.json of google/gemma-3-270m, -1b-pt, and the text part of -4b-pt, -12b-pt and -27b-pt, without their 64 tokens for
// images. Learning rates are not published; these are Llama's.
const SIZES: &[Size] = &[
    Size {
        name: "gemma3-270m",
        model: &[
            ("model.layers", "18"),
            ("model.hidden", "640"),
            ("model.heads", "4"),
            ("model.kv_heads", "1"),
            ("model.head_dim", "256"),
            ("model.ffn", "2048"),
            ("model.vocab", "262144"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma3-1b",
        model: &[
            ("model.layers", "26"),
            ("model.hidden", "1152"),
            ("model.heads", "4"),
            ("model.kv_heads", "1"),
            ("model.head_dim", "256"),
            ("model.ffn", "6912"),
            ("model.vocab", "262144"),
            ("model.seq_length", "8192"),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma3-4b",
        model: &[
            ("model.layers", "34"),
            ("model.hidden", "2560"),
            ("model.heads", "8"),
            ("model.kv_heads", "4"),
            ("model.head_dim", "256"),
            ("model.ffn", "10240"),
            ("model.vocab", "262144"),
            ("model.seq_length", "8192"),
            ("model.sliding_window", "1024"),
            ("model.rope_scaling", "[8.0]"),
            ("model.rope_scaling_type", "\"linear\""),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma3-12b",
        model: &[
            ("model.layers", "48"),
            ("model.hidden", "3840"),
            ("model.heads", "16"),
            ("model.kv_heads", "8"),
            ("model.head_dim", "256"),
            ("model.ffn", "15360"),
            ("model.vocab", "262144"),
            ("model.seq_length", "8192"),
            ("model.sliding_window", "1024"),
            ("model.rope_scaling", "[8.0]"),
            ("model.rope_scaling_type", "\"linear\""),
        ],
        training: &large("3e-4"),
    },
    Size {
        name: "gemma3-27b",
        model: &[
            ("model.layers", "62"),
            ("model.hidden", "5376"),
            ("model.heads", "32"),
            ("model.kv_heads", "16"),
            ("model.head_dim", "128"),
            ("model.ffn", "21504"),
            ("model.vocab", "262144"),
            ("model.seq_length", "8192"),
            ("model.query_pre_attn_scalar", "168.0"),
            ("model.sliding_window", "1024"),
            ("model.rope_scaling", "[8.0]"),
            ("model.rope_scaling_type", "\"linear\""),
        ],
        training: &large("3e-4"),
    },
];

struct Gemma3Files;

const ABSENT: Absent =
    Absent { kv_heads: Some(4), head_dim: Some(256), context: 131_072, norm_eps: 1e-6, rope_base: 1e6 };

impl HuggingFace for Gemma3Files {
    fn model_type(&self) -> &'static str {
        "gemma3_text"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        let mut all = gemma_files::requirements(shape);
        let scales_windows = match shape.position {
            Position::Rotary { scaling, window_base, .. } => {
                shape.windows.is_some() && scaling.is_some() && window_base.is_none()
            }
            _ => false,
        };
        all.extend([
            (shape.qk_norm == Some(QkNorm::EachHead), "no model.qk_norm over each head"),
            (shape.attention_soft_cap.is_none(), "model.attention_soft_cap"),
            (!scales_windows, "model.rope_scaling without model.rope_window_base"),
        ]);
        all
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        if !config.get("attn_logit_softcapping").is_null() {
            // `transformers` reads it and computes without.
            return Err(config.refuse("attn_logit_softcapping", "it is null or absent: norms of heads take its place"));
        }
        // `transformers` writes it with an underscore in front.
        let full_every = config.whole_or("_sliding_window_pattern", 6)?;
        let full_every = config.whole_or("sliding_window_pattern", full_every)?;
        let mut options = gemma_files::options(config, &ABSENT, full_every, None)?;
        let parameters = config.get("rope_parameters");
        let is_kind = |key: &String| key == FULL || key == SLIDING;
        if parameters.as_object().is_some_and(|all| !all.keys().all(is_kind)) {
            return Err(config.refuse("rope_parameters", &format!("it has \"{FULL}\" and \"{SLIDING}\" alone")));
        }
        options.extend(rope::options_of(config, &parameters[FULL], ABSENT.rope_base)?);
        options.push(("model.rope_window_base", window_base(config, &parameters[SLIDING])?.into()));
        options.push(("model.qk_norm", true.into()));
        Ok(options)
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let mut config = gemma_files::config_json(shape);
        config.insert("architectures".into(), json!(["Gemma3ForCausalLM"]));
        config.insert("model_type".into(), json!("gemma3_text"));
        if let Position::Rotary { base, window_base, .. } = shape.position {
            config.insert("rope_local_base_freq".into(), json!(window_base.unwrap_or(base)));
        }
        config.into()
    }

    fn tensors(&self) -> &'static TensorNames {
        &gemma_files::TENSORS
    }
}

/// The base of layers with a window. Version 5 of `transformers` has it in the `parameters` of these layers.
fn window_base(config: &ConfigJson<'_>, parameters: &Json) -> Result<f64, UserError> {
    let refuse = |rule: &str| Err(config.refuse("rope_parameters", rule));
    match &parameters["rope_type"] {
        Json::Null => {}
        kind if kind == "default" => {}
        _ => return refuse("the rope_type of its sliding_attention is \"default\""),
    }
    let part = &parameters["partial_rotary_factor"];
    if !part.is_null() && *part != 1.0 {
        return refuse("the partial_rotary_factor of its sliding_attention is 1");
    }
    let of_file = (parameters, "the rope_theta of its sliding_attention is a number");
    rope::base(config, ("rope_local_base_freq", 10_000.0), of_file)
}
