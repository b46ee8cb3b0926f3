//! A transformer as `reference.py` must know it.

use device::ops::NormKind;
use engine::model::{AttentionKind, FeedForward, FurtherTokens, GptShape, Latent, Position, Scaling};

use super::{MICROBATCHES, STEPS};
use crate::lora::adapters;
use crate::models::{SEQ, VOCAB};

/// A scaling as `transformers` has it in a configuration.
fn rope_scaling(scaling: Option<Scaling>) -> serde_json::Value {
    match scaling {
        None => serde_json::Value::Null,
        Some(Scaling::Llama3 { factor, low, high, original_context }) => serde_json::json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original_context as u64,
        }),
        Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, rounds }) => {
            serde_json::json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "attention_factor": attention_factor, "original_max_position_embeddings": original_context as u64,
                "truncate": rounds,
            })
        }
        Some(Scaling::Linear { factor }) => serde_json::json!({ "rope_type": "linear", "factor": factor }),
    }
}

/// Further entries of the configuration of a kind of models: windows, and the kind's own ones.
fn config(kind: &str, shape: &GptShape) -> serde_json::Value {
    let tokens = shape.windows.as_ref().map(|windows| windows.tokens);
    let type_of = |block| if shape.mask(block).window.is_some() { "sliding_attention" } else { "full_attention" };
    let layer_types: Vec<&str> = (0..shape.layers).map(type_of).collect();
    match kind {
        "mistral" => serde_json::json!({ "sliding_window": tokens }),
        "gptoss" => serde_json::json!({ "sliding_window": tokens, "layer_types": layer_types }),
        "deepseekv3" => {
            let AttentionKind::Latent(Latent { query_rank, rank, head }) = shape.attention else { panic!("no latent") };
            serde_json::json!({
                "q_lora_rank": query_rank, "kv_lora_rank": rank, "qk_nope_head_dim": head.plain,
                "qk_rope_head_dim": head.rotated, "v_head_dim": head.value, "head_dim": head.rotated,
                "num_key_value_heads": shape.heads,
            })
        }
        "qwen2" | "qwen3" if tokens.is_some() => serde_json::json!({
            "use_sliding_window": true, "sliding_window": tokens, "layer_types": layer_types,
        }),
        "gemma2" | "gemma3" => serde_json::json!({
            "sliding_window": tokens, "layer_types": layer_types,
            "query_pre_attn_scalar": shape.query_pre_attn_scalar, "attn_logit_softcapping": shape.attention_soft_cap,
            "final_logit_softcapping": shape.logit_soft_cap,
            "rope_local_base_freq": match shape.position {
                Position::Rotary { window_base, .. } => window_base,
                _ => None,
            },
        }),
        _ => serde_json::json!({}),
    }
}

/// A transformer, as the reference must know it. Kinds other than "gpt" leave the choices that make a family to
/// `transformers`.
pub fn case(kind: &str, shape: &GptShape) -> serde_json::Value {
    let (rope_base, scaling) = match shape.position {
        Position::Rotary { base, scaling, .. } => (base, scaling),
        _ => (1e4, None),
    };
    let mut case = serde_json::json!({
        "kind": kind, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim(), "ffn": shape.ffn, "vocab": VOCAB, "seq": SEQ, "tied": shape.tied, "eps": f64::from(shape.norm_eps as f32),
        "rope_base": rope_base,
        "rope_scaling": rope_scaling(scaling),
        "config": config(kind, shape),
        "steps": STEPS, "microbatches": MICROBATCHES,
        "optimizer": {
            "kind": "adamw", "lr": vec![0.01; STEPS], "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
            "weight_decay": 0.1, "clip": 1.0,
        },
    });
    if let Some(lora) = &shape.lora {
        case["lora"] = adapters(lora, shape);
    }
    if let Some(FurtherTokens { depths, factor }) = shape.further_tokens {
        case["further"] = serde_json::json!({ "depths": depths, "factor": factor });
    }
    if let Some(experts) = &shape.experts {
        case["experts"] = crate::experts::case(experts, shape);
    }
    if kind == "gpt" {
        case["norm"] = if shape.norm == NormKind::Rms { "rmsnorm" } else { "layernorm" }.into();
        case["activation"] = if shape.feed_forward == FeedForward::SwiGlu { "swiglu" } else { "gelu" }.into();
        case["position"] = match shape.position {
            Position::Learned { .. } => "learned",
            Position::Rotary { .. } => "rotary",
            Position::None => "none",
        }
        .into();
        case["bias"] = shape.bias.into();
        case["z_loss"] = f64::from(shape.z_loss_multiplier as f32).into();
    }
    case
}
