//! The common parts of the files of Llama's kind: RMSNorm, SwiGLU, rotary positions, and separate tensors for queries,
//! keys, values, gate and up.

use common::UserError;
use engine::model::{GptShape, Position};
use serde_json::{Value as Json, json};

use super::config_json::ConfigJson;
use super::family::{FileLayout, FileTensor, Keys, NamedOptions, TensorNames};
use super::rope;

/// The largest context taken from a `config.json`. Its `max_position_embeddings`, up to 131072, is the limit that the
/// context can be extended to. A training step does not hold so much.
const LONGEST_CONTEXT: i64 = 8192;

/// The keys of all families of Llama's kind.
pub(super) const KEYS: Keys = Keys { read: options, write: config_json };

/// The keys of families of which some have biases of attention, and of which the trainer takes those without.
pub(super) const NO_ATTENTION_BIAS: Keys = Keys {
    read: |config| config.is_known("attention_bias", &[json!(false)]).map(|()| Vec::new()),
    write: |_| json!({ "attention_bias": false }),
};

/// The options that all families of Llama's kind have in a `config.json`, without biases, norms of heads and windows.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn options(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    config.is_known("hidden_act", &[json!("silu"), json!("swish")])?;
    let mut options = sizes(config)?;
    options.push(("tie_embeddings", config.flag_or("tie_word_embeddings", false)?.into()));
    options.extend(rope::options(config)?);
    Ok(options)
}

/// The sizes among the options of [`options`], and other options that are not a choice.
///
/// # Errors
/// A value that the trainer cannot compute with.
pub(super) fn sizes(config: &ConfigJson<'_>) -> Result<NamedOptions, UserError> {
    let (hidden, heads) = (config.whole("hidden_size")?, config.whole("num_attention_heads")?);
    let or = |key: &str, null: i64| {
        let usual = config.absent(key).filter(|_| !config.has(key));
        config.whole_or(key, usual.map_or(null, |usual| usual as i64))
    };
    let (kv_heads, head_dim) = (or("num_key_value_heads", heads)?, or("head_dim", hidden / heads)?);
    let context = config.usual_whole("max_position_embeddings")?.min(LONGEST_CONTEXT);
    let mut options = vec![
        ("layers", config.whole("num_hidden_layers")?.into()),
        ("hidden", hidden.into()),
        ("heads", heads.into()),
        ("kv_heads", kv_heads.into()),
        ("ffn", config.whole("intermediate_size")?.into()),
        ("vocab", config.whole("vocab_size")?.into()),
        ("seq_length", context.into()),
        ("norm_eps", config.usual_number("rms_norm_eps")?.into()),
    ];
    if head_dim * heads != hidden {
        options.push(("head_dim", head_dim.into()));
    }
    Ok(options)
}

/// The keys of `config.json` that all families of Llama's kind have.
pub(super) fn config_json(shape: &GptShape) -> Json {
    let mut config = size_keys(shape);
    config["hidden_act"] = json!("silu");
    config
}

/// The sizes among the keys of `config.json`, and other keys that are not a choice.
pub(super) fn size_keys(shape: &GptShape) -> Json {
    let (base, scaling) = match shape.position {
        Position::Rotary { base, scaling, .. } => (json!(base), rope::config_json(scaling)),
        _ => (Json::Null, Json::Null),
    };
    json!({
        "num_hidden_layers": shape.layers, "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim(),
        "intermediate_size": shape.ffn, "max_position_embeddings": shape.max_seq_len, "rms_norm_eps": shape.norm_eps,
        "attention_dropout": shape.attention_dropout, "rope_theta": base, "rope_scaling": scaling,
    })
}

/// How the files of all families of Llama's kind hold parameters.
pub(super) const TENSORS: TensorNames = TensorNames {
    prefix: "model.",
    layout: |_, _, _| FileLayout::Ours,
    of: tensors,
    fused: |_| None,
    has_further_tokens: false,
    is_leftover,
};

/// How files hold the parameters of blocks with norms after attention and feed-forward.
pub(super) const TENSORS_WITH_NORMS_AFTER: TensorNames = TensorNames { of: tensors_with_norms_after, ..TENSORS };

/// As Llama's, but for the norms of a block.
fn tensors_with_norms_after(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
    let of_norm = |ours: &str, theirs: &str| {
        let block = parameter.strip_prefix("h.")?.strip_suffix(ours)?;
        Some(FileTensor::whole(format!("model.layers.{block}.{theirs}.weight")))
    };
    of_norm(".post_ln_1.weight", "post_attention_layernorm")
        .or_else(|| of_norm(".post_ln_2.weight", "post_feedforward_layernorm"))
        .or_else(|| of_norm(".ln_2.weight", "pre_feedforward_layernorm"))
        .unwrap_or_else(|| tensors(shape, parameter))
}

/// The tensors that hold one of our parameters: queries, keys and values, and gate and up, are tensors of their own.
pub(super) fn tensors(shape: &GptShape, parameter: &str) -> Vec<FileTensor> {
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
        "mlp.c_fc" => ["gate", "up"].map(|part| FileTensor::rows(name(&format!("mlp.{part}_proj")), shape.ffn)).into(),
        "attn.c_proj" => FileTensor::whole(name("self_attn.o_proj")),
        "attn.q_norm" => FileTensor::whole(name("self_attn.q_norm")),
        "attn.k_norm" => FileTensor::whole(name("self_attn.k_norm")),
        "mlp.c_proj" => FileTensor::whole(name("mlp.down_proj")),
        "ln_1" => FileTensor::whole(name("input_layernorm")),
        _ => FileTensor::whole(name("post_attention_layernorm")),
    }
}

/// Whether a tensor is rotary frequencies. Older versions of `transformers` saved them.
pub(super) fn is_leftover(tensor: &str, _layers: usize) -> bool {
    tensor.ends_with(".rotary_emb.inv_freq")
}
