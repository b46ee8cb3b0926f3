//! Llama (Touvron et al., 2023; Llama Team, 2024). `LlamaForCausalLM` in `transformers`.

use common::UserError;
use device::ops::NormKind;
use engine::model::{FeedForward, GptShape, Position};
use serde_json::{Value as Json, json};
use toml::Value;

use super::config_json::ConfigJson;
use super::family::{FileTensor, HuggingFace, ModelFamily, ModelOptions, Size};
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
        training: &large("3e-4", "3e-5"),
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
        training: &large("3e-4", "3e-5"),
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
        training: &large("1.5e-4", "1.5e-5"),
    },
];

/// The largest context taken from a `config.json`. A Llama's `max_position_embeddings`, up to 131072, is what its context
/// can be extended to, not what a training step holds.
const LONGEST_CONTEXT: i64 = 8192;

struct LlamaFiles;

impl HuggingFace for LlamaFiles {
    fn model_type(&self) -> &'static str {
        "llama"
    }

    fn requirements(&self, shape: &GptShape) -> Vec<(bool, &'static str)> {
        vec![
            (shape.attention, "model.attention = false"),
            (shape.norm == NormKind::Rms, "a model.norm other than \"rmsnorm\""),
            (shape.feed_forward == FeedForward::SwiGlu, "a model.activation other than \"swiglu\""),
            (matches!(shape.position, Position::Rotary { .. }), "a model.position other than \"rotary\""),
        ]
    }

    fn options(&self, config: &ConfigJson<'_>) -> Result<ModelOptions, UserError> {
        config.is_known("hidden_act", &[json!("silu"), json!("swish")])?;
        let (hidden, heads) = (config.whole("hidden_size")?, config.whole("num_attention_heads")?);
        if config.whole_or("head_dim", hidden / heads)? * heads != hidden {
            return Err(config.refuse("head_dim", "it is hidden_size / num_attention_heads"));
        }
        let bias = config.flag_or("attention_bias", false)?;
        if config.flag_or("mlp_bias", false)? != bias {
            return Err(config.refuse("mlp_bias", "it is as attention_bias"));
        }
        let (rope_base, rope_scaling) = rope(config)?;
        let text = |word: &str| Value::String(word.into());
        Ok(vec![
            ("model.kind", text("gpt")),
            ("model.layers", config.whole("num_hidden_layers")?.into()),
            ("model.hidden", hidden.into()),
            ("model.heads", heads.into()),
            ("model.kv_heads", config.whole_or("num_key_value_heads", heads)?.into()),
            ("model.ffn", config.whole("intermediate_size")?.into()),
            ("model.vocab", config.whole("vocab_size")?.into()),
            ("model.seq_length", config.whole_or("max_position_embeddings", 2048)?.min(LONGEST_CONTEXT).into()),
            ("model.attention", true.into()),
            ("model.norm", text("rmsnorm")),
            ("model.norm_eps", config.number_or("rms_norm_eps", 1e-6)?.into()),
            ("model.activation", text("swiglu")),
            ("model.position", text("rotary")),
            ("model.rope_base", rope_base),
            ("model.rope_scaling", rope_scaling),
            ("model.bias", bias.into()),
            ("model.residual_init", text("plain")),
            ("model.tie_embeddings", config.flag_or("tie_word_embeddings", false)?.into()),
        ])
    }

    fn config_json(&self, shape: &GptShape) -> Json {
        let (base, scaling) = match shape.position {
            Position::Rotary { base, scaling } => (json!(base), scaling),
            _ => (Json::Null, None),
        };
        let scaling = scaling.map(|scaling| {
            json!({
                "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low,
                "high_freq_factor": scaling.high,
                "original_max_position_embeddings": scaling.original_context as u64,
            })
        });
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim(), "intermediate_size": shape.ffn,
            "max_position_embeddings": shape.seq, "rms_norm_eps": shape.norm_eps, "attention_bias": shape.bias,
            "mlp_bias": shape.bias, "attention_dropout": shape.attention_dropout, "rope_theta": base,
            "rope_scaling": scaling,
        })
    }

    /// Queries, keys and values, and gate and up, are tensors of their own.
    fn tensors(&self, shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
        let Some((block, inner)) = parameter.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
            return FileTensor::whole(match parameter {
                "wte.weight" => "model.embed_tokens.weight".into(),
                "lm_head.weight" => parameter.into(),
                _ => parameter.replace("ln_f", "model.norm"),
            });
        };
        let (module, kind) = inner.rsplit_once('.').unwrap_or((inner, ""));
        let name = |module: &str| format!("model.layers.{block}.{module}.{kind}");
        let (queries, keys) = (shape.heads * shape.head_dim(), shape.kv_heads * shape.head_dim());
        match module {
            "attn.c_attn" => [("q", queries), ("k", keys), ("v", keys)]
                .map(|(part, rows)| FileTensor::rows(name(&format!("self_attn.{part}_proj")), rows))
                .into(),
            "mlp.c_fc" => {
                ["gate", "up"].map(|part| FileTensor::rows(name(&format!("mlp.{part}_proj")), shape.ffn)).into()
            }
            "attn.c_proj" => FileTensor::whole(name("self_attn.o_proj")),
            "mlp.c_proj" => FileTensor::whole(name("mlp.down_proj")),
            "ln_1" => FileTensor::whole(name("input_layernorm")),
            _ => FileTensor::whole(name("post_attention_layernorm")),
        }
    }

    fn prefix(&self) -> &'static str {
        "model."
    }

    /// Rotary frequencies.
    fn is_leftover(&self, tensor: &str) -> bool {
        tensor.ends_with(".rotary_emb.inv_freq")
    }
}

/// `model.rope_base` and `model.rope_scaling` of a configuration. Version 5 of `transformers` has both in
/// `rope_parameters`.
fn rope(config: &ConfigJson<'_>) -> Result<(Value, Value), UserError> {
    let parameters = config.get("rope_parameters");
    let base = match &parameters["rope_theta"] {
        Json::Null => config.number_or("rope_theta", 10_000.0)?,
        base => base.as_f64().ok_or_else(|| config.refuse("rope_parameters", "its rope_theta is a number"))?,
    };
    let key = if parameters.is_object() { "rope_parameters" } else { "rope_scaling" };
    Ok((base.into(), rope_scaling(config, key)?))
}

/// Llama 3.1's scaling, or an empty list for none.
fn rope_scaling(config: &ConfigJson<'_>, key: &str) -> Result<Value, UserError> {
    let scaling = config.get(key);
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str());
    match kind {
        None if scaling.is_null() => return Ok(Value::Array(vec![])),
        Some("default") => return Ok(Value::Array(vec![])),
        Some("llama3") => {}
        _ => return Err(config.refuse(key, "its rope_type is \"llama3\", or it has none")),
    }
    let keys = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
    let numbers: Vec<Value> = keys.iter().filter_map(|key| scaling[key].as_f64()).map(Value::Float).collect();
    if numbers.len() == keys.len() {
        return Ok(Value::Array(numbers));
    }
    Err(config.refuse(key, &format!("it has the numbers {}", keys.join(", "))))
}
