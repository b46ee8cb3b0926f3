//! The model of a configuration, checked, with every size.

mod attention;
mod experts;
mod fp8;
mod further;
mod lora;
mod loss_pieces;
mod size;

use common::{Mistakes, UserError};
use device::ops::NormKind;
use engine::fp8::Fp8Recipe;
use engine::layer_partition::StageLayers;
use engine::model::{Architecture, Experts, GptShape, MlpShape, TensorParallel, gpt, gpt_part, mlp};
use parallel::{Axis, Ranks};

use crate::config::checks::{at_least, at_most, fits_f32, holdable, require, within};
use crate::config::plan::dpo::preference;
use crate::config::{Fp8Choice, ModelKind, Normalization, RecomputeGranularity, ResidualInit, RunConfig};
use crate::extensions::{Extensions, Own};
use crate::families::MOST_LAYERS;
pub use attention::suits_gpus;
use attention::{attention_kind, check_head_norms, head_dim, heads, position, windows};
use experts::experts_plan;
use fp8::{AttentionSizes, fp8_plan};
use further::further_tokens;
use lora::lora_plan;
pub use lora::{AdaptedModule, modules, of_any_expert};
use loss_pieces::loss_pieces;
pub use size::ModelSize;

/// The kind of model, with all sizes.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a plan holds one")]
pub enum ModelPlan {
    /// A decoder-only transformer.
    Gpt(GptShape),
    /// An MLP.
    Mlp(MlpShape),
}

impl ModelPlan {
    /// The ranks over which a loss sums the loads of experts, if one does.
    pub fn loads_over(&self) -> Option<Axis> {
        match self {
            ModelPlan::Gpt(shape) => shape.experts.as_ref().and_then(Experts::loads_over),
            ModelPlan::Mlp(_) => None,
        }
    }

    /// The room for rows of experts that ranks exchange, over the room for balanced loads, if the model has a budget.
    pub fn row_budget(&self) -> Option<f64> {
        match self {
            ModelPlan::Gpt(shape) => shape.experts.as_ref().and_then(|experts| experts.row_budget),
            ModelPlan::Mlp(_) => None,
        }
    }

    /// A rank's part of the model: a shard of each layer of its pipeline stage.
    pub fn part(&self, tensor: TensorParallel, layers: StageLayers) -> Architecture {
        match self {
            ModelPlan::Gpt(shape) => gpt_part(shape.clone(), tensor, layers),
            ModelPlan::Mlp(shape) => mlp(shape.clone(), tensor.ranks),
        }
    }

    /// The whole model, without memory.
    pub fn architecture(&self) -> Architecture {
        match self {
            ModelPlan::Gpt(shape) => gpt(shape.clone()),
            ModelPlan::Mlp(shape) => mlp(shape.clone(), Ranks::alone()),
        }
    }
}

/// The model of a configuration, checked.
///
/// # Errors
/// The rules that are broken.
pub fn model_plan(config: &RunConfig) -> Result<ModelPlan, UserError> {
    check_model_magnitudes(config)?;
    match config.model.kind {
        ModelKind::Gpt => gpt_shape(config).map(ModelPlan::Gpt),
        ModelKind::Mlp => mlp_shape(config).map(ModelPlan::Mlp),
    }
}

/// Fails on sizes so large that only a typing mistake explains the sizes, and on numbers that no device computes with.
pub(crate) fn check_model_magnitudes(config: &RunConfig) -> Result<(), UserError> {
    let (model, mut mistakes) = (&config.model, Mistakes::default());
    for (key, value, most) in [
        ("model.layers", model.layers, MOST_LAYERS as usize),
        ("model.hidden", model.hidden, 1 << 30),
        ("model.heads", model.heads, 1 << 30),
        ("model.kv_heads", model.kv_heads.unwrap_or(1), 1 << 30),
        ("model.head_dim", model.head_dim.unwrap_or(1), 1 << 30),
        ("model.ffn", model.ffn.unwrap_or(1), 1 << 30),
        ("model.vocab", model.vocab, 1 << 30),
        ("model.seq_length", model.seq_length, 1 << 30),
        ("model.max_position_embeddings", model.max_position_embeddings.unwrap_or(1), 1 << 30),
        // Shapes are padded to multiples of it.
        ("parallel.tensor", config.parallel.tensor, 1 << 16),
    ] {
        mistakes.keep(at_most(key, value, most));
    }
    for (key, value) in [
        ("model.norm_eps", model.norm_eps),
        ("model.init_std", model.init_std),
        ("model.rope_base", model.rope_base),
        ("model.hidden_dropout", model.hidden_dropout),
        ("model.attention_dropout", model.attention_dropout),
    ] {
        mistakes.keep(fits_f32(key, value));
    }
    mistakes.keep(model.rope_scaling.iter().try_for_each(|&value| fits_f32("model.rope_scaling", value)));
    mistakes.end()
}

pub(super) fn is_dropout_rate(key: &str, value: f64) -> Result<(), UserError> {
    let is_rate = (0.0..1.0).contains(&value) && (value as f32) < 1.0;
    within(key, value, is_rate, "a dropout rate is in [0, 1), also as f32", "set it to 0 for none")
}

fn mlp_shape(config: &RunConfig) -> Result<MlpShape, UserError> {
    let model = &config.model;
    require(config.recompute.granularity != RecomputeGranularity::Full, || {
        UserError::new(
            "recompute.granularity = \"full\" with model.kind = \"mlp\"",
            "full recompute is for the blocks of a transformer",
            "set recompute.granularity = \"none\"",
        )
    })?;
    require(model.layer_sizes.len() >= 2 && !model.layer_sizes.contains(&0), || {
        UserError::new(
            format!("model.layer_sizes = {:?}", model.layer_sizes),
            "an MLP has at least an input and an output width, none of them 0",
            "set model.layer_sizes = [4096, 2048, 1024, 512, 256]",
        )
    })?;
    let batch = config.train.micro_batch_size;
    model.layer_sizes.windows(2).try_for_each(|pair| holdable("model.layer_sizes, a weight", pair))?;
    model.layer_sizes.iter().try_for_each(|&size| holdable("micro_batch_size x a layer's size", &[batch, size]))?;
    model.dropouts.iter().try_for_each(|&value| is_dropout_rate("model.dropouts", value))?;
    require(config.precision.fp8 == Fp8Choice::None, || {
        UserError::new(
            format!("precision.fp8 = \"{}\" with model.kind = \"mlp\"", config.precision.fp8),
            "8-bit products are for the blocks of a transformer",
            "set precision.fp8 = \"none\"",
        )
    })?;
    Ok(MlpShape {
        sizes: model.layer_sizes.clone(),
        dropouts: model.dropouts.iter().map(|&rate| rate as f32).collect(),
        seed: config.train.seed,
        precision: config.precision.compute,
    })
}

fn gpt_shape(config: &RunConfig) -> Result<GptShape, UserError> {
    let mut mistakes = Mistakes::default();
    check_model_numbers(config, &mut mistakes);
    let windows = mistakes.keep(windows(config));
    // All else is computed with heads and sizes.
    let kv_heads = mistakes.keep(heads(config));
    let shape = kv_heads.and_then(|kv_heads| shape_with_heads(config, kv_heads, &mut mistakes));
    mistakes.end()?;
    let (Some(windows), Some(shape)) = (windows, shape) else { unreachable!("without a mistake both are there") };
    let shape = GptShape { windows, ..shape };
    let shape = GptShape { lora: lora_plan(config, &shape)?, ..shape };
    check_mlp_tiles(config, &shape)?;
    with_own(config, shape)
}

/// The model's shape without windows and adapters. `None` if a rule is broken.
fn shape_with_heads(config: &RunConfig, kv_heads: usize, mistakes: &mut Mistakes) -> Option<GptShape> {
    let model = &config.model;
    let head_dim = head_dim(config);
    let feed_forward = model.activation;
    let hidden = model.hidden;
    let ffn = model.ffn.unwrap_or(feed_forward.default_width(hidden));
    let attention = mistakes.keep(attention_kind(config, head_dim));
    mistakes.keep(check_head_norms(config));
    let position = mistakes.keep(position(config));
    let mut number = |key, value| mistakes.keep(above_zero(key, value));
    let query_pre_attn_scalar = number("model.query_pre_attn_scalar", model.query_pre_attn_scalar);
    let attention_soft_cap = number("model.attention_soft_cap", model.attention_soft_cap);
    let logit_soft_cap = number("model.logit_soft_cap", model.logit_soft_cap);
    // Sizes are multiplied from here on.
    mistakes.keep(check_gpt_sizes(config, ffn, head_dim))?;
    let loss_pieces = mistakes.keep(loss_pieces(config));
    let preference = preference(config, mistakes);
    let further_tokens = further_tokens(config, mistakes);
    let experts = mistakes.keep(experts_plan(config, ffn));
    let kind = attention?;
    let fp8 = mistakes.keep(fp8_plan(config, ffn, &AttentionSizes { kind, kv_heads, head_dim }));
    Some(GptShape {
        layers: model.layers,
        hidden,
        heads: model.heads,
        kv_heads,
        head_dim: model.head_dim,
        ffn,
        vocab: model.vocab,
        padded_vocab: model.vocab.next_multiple_of(128 * config.parallel.tensor.max(1)),
        max_seq_len: model.seq_length,
        tied: model.tie_embeddings,
        scaled_embedding: model.scale_embeddings,
        attention: kind,
        query_pre_attn_scalar: query_pre_attn_scalar?,
        attention_soft_cap: attention_soft_cap?,
        logit_soft_cap: logit_soft_cap?,
        windows: None,
        norm: match model.norm {
            Normalization::LayerNorm => NormKind::Layer,
            Normalization::RmsNorm => NormKind::Rms,
            Normalization::RmsNorm1p => NormKind::Rms1p,
        },
        norm_placement: model.norm_placement,
        norm_eps: model.norm_eps,
        feed_forward,
        experts: experts?,
        position: position?,
        bias: model.bias,
        qkv_bias: model.qkv_bias,
        qk_norm: (model.qk_norm && model.attention).then_some(model.qk_norm_over),
        init_std: model.init_std,
        scaled_residual_init: model.residual_init == ResidualInit::Scaled,
        hidden_dropout: model.hidden_dropout,
        attention_dropout: model.attention_dropout,
        loss_pieces: loss_pieces?,
        z_loss_multiplier: config.train.z_loss_multiplier,
        further_tokens,
        preference,
        recompute: config.recompute.granularity == RecomputeGranularity::Selective,
        mlp_tiles: config.recompute.mlp_tiles,
        seed: config.train.seed,
        precision: config.precision.compute,
        fp8: fp8?,
        lora: None,
        own_part: None,
        own_loss: None,
    })
}

/// Checks that each tensor of the model can be held.
fn check_gpt_sizes(config: &RunConfig, ffn: usize, head_dim: usize) -> Result<(), UserError> {
    let model = &config.model;
    let (batch, seq, hidden) = (config.train.micro_batch_size, model.seq_length, model.hidden);
    holdable("model.vocab x hidden", &[model.vocab, hidden])?;
    holdable("model.ffn x hidden", &[ffn, hidden])?;
    holdable("model.hidden x hidden", &[hidden, hidden])?;
    holdable("model.hidden x heads x head_dim", &[hidden, model.heads, head_dim])?;
    // The weights of all layers lie in one tensor.
    holdable("model.layers x ffn x hidden", &[model.layers, ffn, hidden])?;
    holdable("model.layers x hidden x heads x head_dim", &[model.layers, hidden, model.heads, head_dim])?;
    holdable("model.seq_length x hidden", &[seq, hidden])?;
    holdable("train.micro_batch_size x model.seq_length x the widest layer", &[batch, seq, ffn.max(model.vocab)])?;
    holdable("train.micro_batch_size x model.seq_length x heads x head_dim", &[batch, seq, model.heads, head_dim])?;
    holdable("train.micro_batch_size x model.heads x seq_length^2", &[batch, model.heads, seq, seq])
}

/// Checks numbers of a model that no other setting depends on.
fn check_model_numbers(config: &RunConfig, mistakes: &mut Mistakes) {
    let model = &config.model;
    mistakes.keep(within(
        "model.norm_eps",
        model.norm_eps,
        model.norm_eps > 0.0 && (model.norm_eps as f32) > 0.0,
        "it is above 0, also as f32",
        "set model.norm_eps = 1e-5",
    ));
    let rule = "it is above 0";
    mistakes.keep(within("model.init_std", model.init_std, model.init_std > 0.0, rule, "set model.init_std = 0.02"));
    mistakes.keep(is_dropout_rate("model.hidden_dropout", model.hidden_dropout));
    mistakes.keep(is_dropout_rate("model.attention_dropout", model.attention_dropout));
    let (key, z_loss) = ("train.z_loss_multiplier", config.train.z_loss_multiplier);
    let rule = "a multiplier is not negative";
    mistakes.keep(within(key, z_loss, z_loss >= 0.0, rule, "set it to 1e-5, or 0 for no z-loss"));
    mistakes.keep(fits_f32(key, z_loss));
}

/// An optional number. If it is set, it must be above 0.
fn above_zero(key: &str, value: Option<f64>) -> Result<Option<f64>, UserError> {
    let Some(number) = value else { return Ok(None) };
    fits_f32(key, number)?;
    within(key, number, number > 0.0 && (number as f32) > 0.0, "it is above 0, also as f32", "leave it unset")?;
    Ok(value)
}

/// The shape with the part and the loss that the program adds, where the run names either.
pub(super) fn with_own(config: &RunConfig, shape: GptShape) -> Result<GptShape, UserError> {
    let added = Extensions::installed();
    let own_part = Own::chosen(added.parts, "part", config)?;
    let own_loss = Own::chosen(added.losses, "loss", config)?;
    let refuse = |own: &str, other: String, rule: &str| {
        Err(UserError::new(format!("{own} with {other}"), rule, "leave one of the two out"))
    };
    if own_part.is_some() && shape.mlp_tiles > 1 {
        let other = format!("recompute.mlp_tiles = {}", shape.mlp_tiles);
        return refuse("own.part", other, "tiles are for the feed-forward layers that the trainer has");
    }
    if own_part.is_some() && (0..config.model.layers).all(|block| shape.block_experts(block).is_some()) {
        let rule = "the part takes the place of dense feed-forward layers, and every block has experts";
        return refuse("own.part", format!("model.experts = {}", config.model.experts), rule);
    }
    let has_terms = own_part.as_ref().is_some_and(|part| !part.terms().is_empty());
    if has_terms && config.parallel.sequence_parallel && config.parallel.tensor > 1 {
        let rule = "a part's term of the loss is counted over all rows, and ranks have some rows each";
        return refuse("own.part", "parallel.sequence_parallel".into(), rule);
    }
    if own_loss.is_some() {
        let rule = "a loss of the program's takes the place of cross-entropy over the whole vocabulary";
        for (excludes, other) in [
            (shape.preference.is_some(), "data.dpo or data.kto".to_string()),
            (shape.further_tokens.is_some(), "model.mtp_layers".into()),
            (shape.z_loss_multiplier != 0.0, "train.z_loss_multiplier".into()),
            (shape.logit_soft_cap.is_some(), "model.logit_soft_cap".into()),
            (config.parallel.tensor > 1, format!("parallel.tensor = {}", config.parallel.tensor)),
        ] {
            if excludes {
                return refuse("own.loss", other, rule);
            }
        }
    }
    Ok(GptShape { own_part, own_loss, ..shape })
}

/// Checks the number of tiles for a model of that shape.
pub(super) fn check_mlp_tiles(config: &RunConfig, shape: &GptShape) -> Result<(), UserError> {
    let (key, tiles) = ("recompute.mlp_tiles", config.recompute.mlp_tiles);
    at_least(key, tiles, 1)?;
    for (excludes, other, rule, fix) in [
        (
            shape.fp8.is_some_and(|fp8| fp8.recipe != Fp8Recipe::Delayed),
            format!("precision.fp8_recipe = \"{}\"", config.precision.fp8_recipe),
            "scales of tiles are delayed: others follow from all tokens, or differ between the copies of a tensor",
            "set precision.fp8_recipe = \"delayed\" (--fp8-recipe), or leave out --mlp-tiles",
        ),
        (
            shape.fp8.is_some() && shape.lora.is_some(),
            format!("precision.fp8 = \"{}\" and model.lora_rank = {}", config.precision.fp8, config.model.lora_rank),
            "tiles keep bytes alone for weight gradients, and adapters read values of 16 bits",
            "set precision.fp8 = \"none\", or leave out --mlp-tiles",
        ),
        (
            shape.experts.is_some(),
            format!("model.experts = {}", config.model.experts),
            "layers of experts are not computed in tiles",
            "leave out --mlp-tiles",
        ),
    ] {
        let error = || UserError::new(format!("{key} = {tiles} with {other}"), rule, fix);
        require(tiles == 1 || !excludes, error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn rules_of_all_parts_of_a_model_are_told_at_once() {
        let wrong = "model.experts=4 model.attention_soft_cap=-1 model.loss_pieces=3 model.window_pattern=[2] precision.fp8=hybrid";
        let sources = ConfigSources::of_pairs(wrong).unwrap();
        let error = gpt_shape(&sources.resolve()).unwrap_err().to_string();
        for words in [
            "5 mistakes",
            "experts have a gate",
            "model.attention_soft_cap = -1",
            "model.loss_pieces = 3",
            "model.window_pattern = [2]",
            "8-bit products go with bf16",
        ] {
            assert!(error.contains(words), "`{words}` is missing from: {error}");
        }
    }
}
