//! The attention of a configuration: its kind, heads, windows and positions.

use common::{Mistakes, UserError};
use device::ops::{Attention, LatentHead};
use engine::model::{AttentionKind, Latent, Position, Scaling, Windows};

use crate::config::checks::{at_least, at_most, fits_f32, holdable, require, within};
use crate::config::plan::ModelPlan;
use crate::config::{ModelConfig, Normalization, PositionEmbedding, QkNorm, RopeScalingType, RunConfig};

/// Most channels of a head with normalised queries and keys: as many as kernels keep in registers.
const MOST_NORMED: usize = 512;

/// Fails unless GPUs compute a model's attention.
///
/// # Errors
/// Heads that are wider than kernels are.
pub fn suits_gpus(model: &ModelPlan) -> Result<(), UserError> {
    let ModelPlan::Gpt(shape) = model else { return Ok(()) };
    let dim = match shape.attention {
        AttentionKind::None => return Ok(()),
        AttentionKind::Grouped { .. } => shape.head_dim(),
        AttentionKind::Latent(latent) => latent.head.packed(),
    };
    let most = Attention::WIDEST_ON_GPUS;
    require(dim <= most, || {
        UserError::new(
            format!("heads of {dim} channels (model.head_dim, or model.hidden / model.heads) on a GPU"),
            format!("attention on a GPU has heads of at most {most} channels"),
            "set more model.heads or a smaller model.head_dim, or train.device = \"host\"",
        )
    })
}

/// The kind of attention; `head_dim` is the channels of a query.
pub(super) fn attention_kind(config: &RunConfig, head_dim: usize) -> Result<AttentionKind, UserError> {
    let model = &config.model;
    let Some(rank) = model.kv_latent.filter(|_| model.attention) else {
        return Ok(match model.attention {
            true => AttentionKind::Grouped { sinks: model.attention_sinks },
            false => AttentionKind::None,
        });
    };
    let (rotated, plain) = (model.rotary_head_dim, head_dim.saturating_sub(model.rotary_head_dim));
    let value = model.value_head_dim.unwrap_or(plain);
    for (key, value, least) in [
        ("model.kv_latent", rank, 1),
        ("model.query_latent", model.query_latent.unwrap_or(1), 1),
        ("model.rotary_head_dim", rotated, 2),
        ("model.value_head_dim", value, 1),
    ] {
        at_least(key, value, least)?;
        at_most(key, value, 1 << 30)?;
    }
    require(plain > 0 && rotated.is_multiple_of(2), || {
        UserError::new(
            format!("model.rotary_head_dim = {rotated} with {head_dim} channels of a head"),
            "an even number of a query's channels rotates, and some do not",
            format!("set model.rotary_head_dim = {}", (head_dim / 4 * 2).max(2)),
        )
    })?;
    for (is_set, what, fix) in [
        (
            model.position != PositionEmbedding::Rotary,
            "a model.position other than \"rotary\"",
            "set model.position = \"rotary\"",
        ),
        (model.kv_heads.is_some_and(|heads| heads != 1), "model.kv_heads", "leave model.kv_heads out"),
        (model.qk_norm, "model.qk_norm = true", "set model.qk_norm = false"),
        (model.attention_sinks, "model.attention_sinks = true", "set model.attention_sinks = false"),
        (model.norm == Normalization::LayerNorm, "model.norm = \"layernorm\"", "set model.norm = \"rmsnorm\""),
    ] {
        require(!is_set, || {
            UserError::new(format!("model.kv_latent = {rank} with {what}"), "latent attention does not have it", fix)
        })?;
    }
    Ok(AttentionKind::Latent(Latent {
        query_rank: model.query_latent,
        rank,
        head: LatentHead { plain, rotated, value },
    }))
}

/// Checks that no size is 0, that heads divide the width, and that key and value heads divide the heads. Returns the
/// number of key and value heads.
pub(super) fn heads(config: &RunConfig) -> Result<usize, UserError> {
    let model = &config.model;
    let mut mistakes = Mistakes::default();
    for (key, value) in [
        ("model.layers", model.layers),
        ("model.hidden", model.hidden),
        ("model.heads", model.heads),
        ("model.vocab", model.vocab),
        ("model.seq_length", model.seq_length),
        ("model.kv_heads", model.kv_heads.unwrap_or(1)),
        ("model.head_dim", model.head_dim.unwrap_or(1)),
        ("model.ffn", model.ffn.unwrap_or(1)),
    ] {
        mistakes.keep(at_least(key, value, 1));
    }
    mistakes.end()?;
    require(model.head_dim.is_some() || model.hidden.is_multiple_of(model.heads), || {
        UserError::new(
            format!("model.hidden = {} with model.heads = {}", model.hidden, model.heads),
            "hidden is a multiple of heads, unless model.head_dim is set",
            format!("set model.hidden = {}", model.hidden.next_multiple_of(model.heads)),
        )
    })?;
    // All ranks compute a latent.
    let all = if model.kv_latent.is_some() { 1 } else { model.heads };
    let kv_heads = model.kv_heads.unwrap_or(all);
    require(model.heads.is_multiple_of(kv_heads), || {
        UserError::new(
            format!("model.heads = {} with model.kv_heads = {kv_heads}", model.heads),
            "heads is a multiple of kv_heads: each key and value head serves as many",
            format!("set model.kv_heads = {}, or another divisor of heads", model.heads),
        )
    })?;
    Ok(kv_heads)
}

/// Channels of a head. [`heads`] comes before.
pub(super) fn head_dim(config: &RunConfig) -> usize {
    let model = &config.model;
    model.head_dim.unwrap_or(model.hidden / model.heads)
}

/// Fails on norms of queries and keys that no kernel computes.
pub(super) fn check_head_norms(config: &RunConfig) -> Result<(), UserError> {
    let (model, head_dim) = (&config.model, head_dim(config));
    if !model.qk_norm || !model.attention {
        return Ok(());
    }
    require(model.norm != Normalization::LayerNorm, || {
        UserError::new(
            format!("model.qk_norm = true with model.norm = \"{}\"", model.norm),
            "queries and keys are normalised by RMSNorm, and so is the rest of such a model",
            "set model.norm = \"rmsnorm\", or model.qk_norm = false",
        )
    })?;
    let each_head = model.qk_norm_over == QkNorm::EachHead;
    require(each_head || model.norm == Normalization::RmsNorm, || {
        UserError::new(
            format!("model.qk_norm_over = \"{}\" with model.norm = \"{}\"", model.qk_norm_over, model.norm),
            "norms over all heads multiply by their weight alone",
            "set model.qk_norm_over = \"each_head\", or model.norm = \"rmsnorm\"",
        )
    })?;
    require(!each_head || (head_dim.is_multiple_of(2) && head_dim <= MOST_NORMED), || {
        let even = head_dim.min(MOST_NORMED).next_multiple_of(2);
        UserError::new(
            format!("model.qk_norm = true with {head_dim} channels of a head"),
            format!("heads that are normalised have an even number of channels, at most {MOST_NORMED}"),
            format!("set model.head_dim = {even}, or model.qk_norm = false"),
        )
    })
}

/// The blocks in which a token does not see all earlier tokens; `None` without such blocks.
pub(super) fn windows(config: &RunConfig) -> Result<Option<Windows>, UserError> {
    let model = &config.model;
    let pattern = &model.window_pattern;
    require(pattern.iter().all(|&has| has <= 1), || {
        UserError::new(
            format!("model.window_pattern = {pattern:?}"),
            "it has 1 for a block with a window and 0 for one without",
            "set model.window_pattern = [1, 0] for every other block, or [] for all",
        )
    })?;
    let Some(tokens) = model.sliding_window else { return Ok(None) };
    at_least("model.sliding_window", tokens, 1)?;
    let has_window = model.attention && (pattern.is_empty() || pattern.contains(&1));
    let pattern = pattern.iter().map(|&has| has == 1).collect();
    Ok(has_window.then_some(Windows { tokens, pattern }))
}

/// The table of learned positions.
fn learned_positions(model: &ModelConfig) -> Result<Position, UserError> {
    let (seq, positions) = (model.seq_length, model.max_position_embeddings.unwrap_or(model.seq_length));
    require(seq <= positions, || {
        UserError::new(
            format!("model.seq_length = {seq} with model.max_position_embeddings = {positions}"),
            "each token of a sequence has a learned position",
            format!("set model.seq_length = {positions} or less; a model that was trained has no others"),
        )
    })?;
    holdable("model.max_position_embeddings x hidden", &[positions, model.hidden])?;
    Ok(Position::Learned { positions })
}

/// How the model knows positions.
pub(super) fn position(config: &RunConfig) -> Result<Position, UserError> {
    let model = &config.model;
    match model.position {
        PositionEmbedding::Rotary => {}
        PositionEmbedding::None => return Ok(Position::None),
        PositionEmbedding::Learned => return learned_positions(model),
    }
    let head_dim = head_dim(config);
    require(head_dim.is_multiple_of(2), || {
        let (what, fix) = match model.head_dim {
            Some(_) => ("head_dim", format!("set model.head_dim = {}", head_dim + 1)),
            None => ("hidden / heads", format!("set model.hidden = {}", model.heads * (head_dim + 1))),
        };
        UserError::new(
            format!("model.position = \"rotary\" with {what} = {head_dim}"),
            "rotary positions rotate pairs of channels: a head has an even number",
            fix,
        )
    })?;
    let base = model.rope_base;
    within("model.rope_base", base, base > 1.0, "it is above 1", "set model.rope_base = 10000")?;
    let (scaling, window_base) = (scaling(config)?, model.rope_window_base);
    if let Some(base) = window_base {
        let key = "model.rope_window_base";
        fits_f32(key, base)?;
        within(key, base, base > 1.0, "it is above 1", "set model.rope_window_base = 10000, or leave it unset")?;
    }
    Ok(Position::Rotary { base, scaling, window_base })
}

/// How rotary frequencies are lowered.
fn scaling(config: &RunConfig) -> Result<Option<Scaling>, UserError> {
    let (kind, numbers) = (config.model.rope_scaling_type, &config.model.rope_scaling[..]);
    let refuse = |rule: &str, fix: &str| {
        let what = format!("model.rope_scaling = {numbers:?} with model.rope_scaling_type = \"{kind}\"");
        Err(UserError::new(what, rule, format!("set model.rope_scaling = {fix}, or []")))
    };
    match (kind, numbers) {
        (_, []) => Ok(None),
        (RopeScalingType::Llama3, &[factor, low, high, original_context])
            if factor >= 1.0 && low > 0.0 && high > low && original_context >= 1.0 =>
        {
            Ok(Some(Scaling::Llama3 { factor, low, high, original_context }))
        }
        (RopeScalingType::Llama3, _) => refuse(
            "it is empty, or [factor >= 1, low > 0, high > low, original context >= 1]",
            "[8, 1, 4, 8192] as Llama 3.1 has it",
        ),
        (
            RopeScalingType::Yarn | RopeScalingType::YarnExact,
            &[factor, original_context, beta_fast, beta_slow, attention_factor],
        ) if factor >= 1.0
            && original_context >= 1.0
            && beta_slow > 0.0
            && beta_fast >= beta_slow
            && attention_factor > 0.0 =>
        {
            let rounds = kind == RopeScalingType::Yarn;
            Ok(Some(Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, rounds }))
        }
        (RopeScalingType::Yarn | RopeScalingType::YarnExact, _) => refuse(
            "it is empty, or [factor >= 1, original context >= 1, beta fast >= beta slow, beta slow > 0, attention factor > 0]",
            "[4, 32768, 32, 1, 1.1386294361119891] as Qwen2.5 has it",
        ),
        (RopeScalingType::Linear, &[factor]) if factor >= 1.0 => Ok(Some(Scaling::Linear { factor })),
        (RopeScalingType::Linear, _) => refuse("it is empty, or [factor >= 1]", "[8]"),
    }
}
