//! The number of tiles that dense feed-forward layers are computed in.

use common::UserError;
use engine::fp8::Fp8Recipe;
use engine::model::GptShape;

use crate::config::RunConfig;
use crate::config::checks::{at_least, require};

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
