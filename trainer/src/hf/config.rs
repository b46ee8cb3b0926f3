//! A model's `config.json` and our options.

use common::UserError;
use engine::model::{GptShape, Position};
use serde_json::{Value as Json, json};
use toml::Value;

use super::DataType;
use super::names::Family;
use crate::config::{ModelConfig, ModelOptions};

/// The most positions taken from a Llama's configuration; its own maximum, up to 131072, is what it can be extended to,
/// not what a step holds.
const MOST_POSITIONS: i64 = 8192;

/// Reads options from a `config.json`: the family, and what the model section must be. Dropout is not a model's but a
/// training run's, so it is left alone.
///
/// # Errors
/// A family or a choice that we do not have.
pub(super) fn options(config: &Json, origin: &str) -> Result<(Family, ModelOptions), UserError> {
    let reader = Reader { config, origin };
    match config["model_type"].as_str() {
        Some("gpt2") => Ok((Family::Gpt2, reader.gpt2()?)),
        Some("llama") => Ok((Family::Llama, reader.llama()?)),
        _ => Err(reader.refuse("model_type", "it is \"gpt2\" or \"llama\"")),
    }
}

struct Reader<'c> {
    config: &'c Json,
    origin: &'c str,
}

impl Reader<'_> {
    fn refuse(&self, key: &str, rule: &str) -> UserError {
        UserError::new(
            format!("{key} = {} in {}", self.config[key], self.origin),
            rule,
            "convert a model of the GPT-2 or Llama family that has it so",
        )
    }

    fn whole(&self, key: &str) -> Result<i64, UserError> {
        let number = self.config[key].as_i64().filter(|&number| number > 0);
        number.ok_or_else(|| self.refuse(key, "it is a whole number above 0"))
    }

    /// A whole number that may be absent or null.
    fn whole_or(&self, key: &str, default: i64) -> Result<i64, UserError> {
        if self.config[key].is_null() { Ok(default) } else { self.whole(key) }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, UserError> {
        if self.config[key].is_null() {
            return Ok(default);
        }
        self.config[key].as_f64().ok_or_else(|| self.refuse(key, "it is a number"))
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, UserError> {
        if self.config[key].is_null() {
            return Ok(default);
        }
        self.config[key].as_bool().ok_or_else(|| self.refuse(key, "it is true or false"))
    }

    /// Fails unless the value is one of `known`, or absent.
    fn known(&self, key: &str, known: &[Json]) -> Result<(), UserError> {
        let value = &self.config[key];
        if value.is_null() || known.contains(value) {
            return Ok(());
        }
        let known: Vec<String> = known.iter().map(Json::to_string).collect();
        Err(self.refuse(key, &format!("it is {}", known.join(" or "))))
    }

    fn gpt2(&self) -> Result<ModelOptions, UserError> {
        self.known("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")])?;
        self.known("scale_attn_weights", &[json!(true)])?;
        self.known("scale_attn_by_inverse_layer_idx", &[json!(false)])?;
        self.known("add_cross_attention", &[json!(false)])?;
        let hidden = self.whole("n_embd")?;
        let heads = self.whole("n_head")?;
        Ok(vec![
            ("model.kind", text("gpt")),
            ("model.layers", self.whole("n_layer")?.into()),
            ("model.hidden", hidden.into()),
            ("model.heads", heads.into()),
            ("model.kv_heads", heads.into()),
            ("model.ffn", self.whole_or("n_inner", 4 * hidden)?.into()),
            ("model.vocab", self.whole("vocab_size")?.into()),
            ("model.seq_length", self.whole("n_positions")?.into()),
            ("model.attention", true.into()),
            ("model.norm", text("layernorm")),
            ("model.norm_eps", self.number("layer_norm_epsilon", 1e-5)?.into()),
            ("model.activation", text("gelu")),
            ("model.position", text("learned")),
            ("model.bias", true.into()),
            ("model.residual_init", text("scaled")),
            ("model.tie_embeddings", self.flag("tie_word_embeddings", true)?.into()),
        ])
    }

    fn llama(&self) -> Result<ModelOptions, UserError> {
        self.known("hidden_act", &[json!("silu"), json!("swish")])?;
        let (hidden, heads) = (self.whole("hidden_size")?, self.whole("num_attention_heads")?);
        if self.whole_or("head_dim", hidden / heads)? * heads != hidden {
            return Err(self.refuse("head_dim", "it is hidden_size / num_attention_heads"));
        }
        let bias = self.flag("attention_bias", false)?;
        if self.flag("mlp_bias", false)? != bias {
            return Err(self.refuse("mlp_bias", "it is as attention_bias"));
        }
        // Version 5 of transformers has both in `rope_parameters`.
        let parameters = &self.config["rope_parameters"];
        let base = parameters["rope_theta"].as_f64().map_or_else(|| self.number("rope_theta", 10_000.0), Ok)?;
        let key = if parameters.is_object() { "rope_parameters" } else { "rope_scaling" };
        Ok(vec![
            ("model.kind", text("gpt")),
            ("model.layers", self.whole("num_hidden_layers")?.into()),
            ("model.hidden", hidden.into()),
            ("model.heads", heads.into()),
            ("model.kv_heads", self.whole_or("num_key_value_heads", heads)?.into()),
            ("model.ffn", self.whole("intermediate_size")?.into()),
            ("model.vocab", self.whole("vocab_size")?.into()),
            ("model.seq_length", self.whole_or("max_position_embeddings", 2048)?.min(MOST_POSITIONS).into()),
            ("model.attention", true.into()),
            ("model.norm", text("rmsnorm")),
            ("model.norm_eps", self.number("rms_norm_eps", 1e-6)?.into()),
            ("model.activation", text("swiglu")),
            ("model.position", text("rotary")),
            ("model.rope_base", base.into()),
            ("model.rope_scaling", self.scaling(key)?),
            ("model.bias", bias.into()),
            ("model.residual_init", text("plain")),
            ("model.tie_embeddings", self.flag("tie_word_embeddings", false)?.into()),
        ])
    }

    /// Llama 3.1's scaling, or none.
    fn scaling(&self, key: &str) -> Result<Value, UserError> {
        let scaling = &self.config[key];
        let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str());
        match kind {
            None if scaling.is_null() => return Ok(Value::Array(vec![])),
            Some("default") => return Ok(Value::Array(vec![])),
            Some("llama3") => {}
            _ => return Err(self.refuse(key, "its rope_type is \"llama3\", or it has none")),
        }
        let keys = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];
        let numbers: Vec<Value> = keys.iter().filter_map(|key| scaling[key].as_f64()).map(Value::Float).collect();
        if numbers.len() == keys.len() {
            return Ok(Value::Array(numbers));
        }
        Err(self.refuse(key, &format!("it has the numbers {}", keys.join(", "))))
    }
}

fn text(word: &str) -> Value {
    Value::String(word.into())
}

/// The `config.json` of a model, as `transformers` reads it; `end` is the token that ends a text, where it is known.
pub(super) fn config_json(
    model: &ModelConfig,
    shape: &GptShape,
    family: Family,
    dtype: DataType,
    end: Option<u32>,
) -> Json {
    // Without the keys transformers would take the family's own tokens, which may be beyond the vocabulary.
    let common = json!({
        "vocab_size": shape.vocab, "tie_word_embeddings": shape.tied, "initializer_range": model.init_std,
        "torch_dtype": dtype.torch_name(), "bos_token_id": null, "eos_token_id": end, "use_cache": true,
    });
    let mut config = match family {
        Family::Llama => json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "num_hidden_layers": shape.layers, "hidden_size": shape.hidden, "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim(), "intermediate_size": shape.ffn,
            "max_position_embeddings": shape.seq, "rms_norm_eps": model.norm_eps, "attention_bias": shape.bias,
            "mlp_bias": shape.bias, "attention_dropout": model.attention_dropout, "rope_theta": model.rope_base,
            "rope_scaling": null,
        }),
        Family::Gpt2 | Family::Ours => json!({
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
            "n_layer": shape.layers, "n_embd": shape.hidden, "n_head": shape.heads, "n_inner": shape.ffn,
            "n_positions": shape.seq, "layer_norm_epsilon": model.norm_eps, "resid_pdrop": model.hidden_dropout,
            "embd_pdrop": model.hidden_dropout, "attn_pdrop": model.attention_dropout,
        }),
    };
    if let Position::Rotary { scaling: Some(scaling), .. } = shape.position {
        config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high, "original_max_position_embeddings": scaling.original_context as u64,
        });
    }
    if let (Json::Object(config), Json::Object(common)) = (&mut config, common) {
        config.extend(common);
    }
    config
}
