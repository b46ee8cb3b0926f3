//! The recipe of 8-bit products, and what the recipe demands of a model's sizes.

use common::UserError;
use engine::fp8::{Fp8, Fp8Format, Fp8Recipe};
use engine::model::{AttentionKind, Latent};
use engine::precision::Precision;

use crate::config::checks::{at_least, at_most, require};
use crate::config::plan::ranks::tokens_here;
use crate::config::{AmaxAlgo, FeedForward, Fp8Choice, RunConfig};

/// The number that sizes of 8-bit products are multiples of: cuBLASLt's rule.
const MULTIPLE: usize = 16;

/// The sizes of attention that decide sizes of products.
pub(super) struct AttentionSizes {
    /// The kind of attention.
    pub(super) kind: AttentionKind,
    /// Key and value heads.
    pub(super) kv_heads: usize,
    /// Channels of a head; of latent attention the channels of a query.
    pub(super) head_dim: usize,
}

impl AttentionSizes {
    /// The sizes of the attention's products on one of so many ranks that share `heads`.
    fn on_a_rank(&self, heads: usize, ranks: usize) -> Vec<(&'static str, usize)> {
        let AttentionSizes { kind, kv_heads, head_dim } = *self;
        let share = |size: usize| size / ranks;
        match kind {
            AttentionKind::Latent(Latent { query_rank, rank, head }) => {
                let queries = share(heads) * head.query();
                let mut sizes = vec![
                    ("model.kv_latent", rank),
                    (
                        "queries, or their latent, and the latent of keys",
                        query_rank.unwrap_or(queries) + rank + head.rotated,
                    ),
                    ("keys and values of a rank", share(heads) * (head.plain + head.value)),
                    ("heads x value size of a rank", share(heads) * head.value),
                ];
                if let Some(rank) = query_rank {
                    sizes.extend([("model.query_latent", rank), ("queries of a rank", queries)]);
                }
                sizes
            }
            _ => vec![
                ("queries, keys and values of a rank", (share(heads) + 2 * share(kv_heads).max(1)) * head_dim),
                ("heads x head size of a rank", share(heads * head_dim)),
            ],
        }
    }
}

/// The recipe; `None` without 8-bit products. `ffn` and `attention` are the model's, with defaults filled in.
///
/// # Errors
/// A setting out of its range, another type than bf16 beside it, the hybrid format with blockwise scaling, or a size that is
/// no multiple of 16.
pub(super) fn fp8_plan(config: &RunConfig, ffn: usize, attention: &AttentionSizes) -> Result<Option<Fp8>, UserError> {
    let precision = &config.precision;
    at_least("precision.fp8_amax_history", precision.fp8_amax_history, 1)?;
    at_most("precision.fp8_amax_history", precision.fp8_amax_history, 1 << 12)?;
    at_most("precision.fp8_margin", precision.fp8_margin, 16)?;
    let [first, last] = precision.bf16_blocks[..] else {
        return Err(UserError::new(
            format!("precision.bf16_blocks = {:?}", precision.bf16_blocks),
            "it is two numbers: blocks at the start, blocks at the end",
            "set precision.bf16_blocks = [1, 1]",
        ));
    };
    let format = match precision.fp8 {
        Fp8Choice::None => return Ok(None),
        Fp8Choice::Hybrid => Fp8Format::Hybrid,
        Fp8Choice::E4m3 => Fp8Format::E4m3,
    };
    require(precision.compute == Precision::Bf16, || {
        UserError::new(
            format!("precision.fp8 = \"{}\" with precision.compute = \"{}\"", precision.fp8, precision.compute),
            "8-bit products go with bf16 for everything else",
            "set precision.compute = \"bf16\" (--bf16)",
        )
    })?;
    require(config.model.activation != FeedForward::ClampedSwiGlu, || {
        UserError::new(
            format!("precision.fp8 = \"{}\" with model.activation = \"clamped_swiglu\"", precision.fp8),
            "8-bit copies are made of the other activations",
            "set precision.fp8 = \"none\", or another activation",
        )
    })?;
    require(format == Fp8Format::E4m3 || precision.fp8_recipe != Fp8Recipe::Blockwise, || {
        UserError::new(
            format!("precision.fp8 = \"{}\" with precision.fp8_recipe = \"blockwise\"", precision.fp8),
            "a scale for each block needs no wider range: gradients are E4M3 too",
            "set precision.fp8 = \"e4m3\" (--fp8-format e4m3)",
        )
    })?;
    let (model, tensor) = (&config.model, config.parallel.tensor.max(1));
    let widths = [("model.hidden", model.hidden), ("model.ffn of a rank", ffn / tensor)];
    let tokens = [("tokens of a microbatch", tokens_here(config))];
    for (what, size) in widths.into_iter().chain(attention.on_a_rank(model.heads, tensor)).chain(tokens) {
        require(size.is_multiple_of(MULTIPLE), || {
            UserError::new(
                format!("precision.fp8 = \"{}\" with {what} = {size}", precision.fp8),
                format!("sizes of 8-bit products are multiples of {MULTIPLE}"),
                format!("choose sizes so that it is {}, or leave out --fp8-format", size.next_multiple_of(MULTIPLE)),
            )
        })?;
    }
    let amax_history = match precision.fp8_amax_algo {
        AmaxAlgo::Max => precision.fp8_amax_history,
        AmaxAlgo::MostRecent => 1,
    };
    let (recipe, margin) = (precision.fp8_recipe, precision.fp8_margin as i32);
    let gathers_weights = precision.fp8_param_gather;
    require(!gathers_weights || recipe.has_one_scale(), || {
        UserError::new(
            format!("precision.fp8_param_gather = true with precision.fp8_recipe = \"{recipe}\""),
            "weights that are gathered in 8 bits have one scale",
            "set precision.fp8_recipe = \"delayed\" or \"tensorwise\", or precision.fp8_param_gather = false",
        )
    })?;
    Ok(Some(Fp8 { recipe, format, amax_history, margin, bf16_blocks: [first, last], gathers_weights }))
}
